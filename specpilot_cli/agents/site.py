"""Everything that the parts of a round share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specpilot_cli.agents.controller.gate import Gate
from specpilot_cli.agents.conversation import Desk
from specpilot_cli.agents.durable import Durable
from specpilot_cli.agents.questions import Questions
from specpilot_cli.agents.seat import keep
from specpilot_cli.artifacts.ceiling import CeilingBody
from specpilot_cli.artifacts.round import RoundSettings
from specpilot_cli.memory.room import Room


@dataclass(frozen=True)
class Site:
    """A round at work."""

    folder: Path
    round_id: str
    stock: Path
    stock_tree: str
    engine: str
    ceiling: CeilingBody
    settings: RoundSettings
    room: Room
    """The memory that is read."""
    desk: Desk
    gates: Mapping[str, Gate]
    """The controller of each device."""
    runner: Any
    """Runs an agent's commands (`agents.shell`)."""
    evidence: Path
    """Folder of the controller that sealed: where its artifacts are."""
    seal_fault: Callable[[Path], str | None]
    """What is wrong with a seal; None where it holds."""

    @property
    def durable(self) -> Durable:
        """Effects that happen once."""
        return self.desk.durable

    def tell(self, agent: str, line: str) -> None:
        """For people who watch."""
        self.desk.tell(agent, line)

    def stop(self) -> None:
        """Raises where a person asked the round to stop."""
        self.desk.stop()

    def worktree(self, agent: str) -> Path:
        """The folder of an agent's worktree."""
        return self.folder / "worktrees" / agent.replace("/", "-")

    def ref(self, agent: str) -> str:
        """Name of an agent's refs in the stock repository."""
        return f"{self.round_id}/{agent}"

    def keep(self, tree: str, agent: str) -> str:
        """Keep a tree under the agent's refs; its commit."""
        return keep(self.stock, tree, self.ref(agent))

    def questions(self, agent: str, device: str) -> Questions:
        """The way of an agent to the controller of a device."""
        return Questions(
            self.gates[device], self.durable, self.desk.meter, lambda line: self.tell(agent, line), self.stop
        )
