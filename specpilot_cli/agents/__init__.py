"""The agent round: a master plans, agents work in worktrees, a controller that they cannot touch promotes."""
