"""Known faults and cheats, planted in real worktrees, and how often each gate catches them; honest systems beside them.

The gates are the real ones: `controller.run.PairRun` and `forcing.run.force`. Nothing is simulated here.
"""
