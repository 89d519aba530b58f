"""A controller on another host: each question goes there as a task of an executor, with the tree's commit.

On the host, the round's controller folder lies in the cache and is used by every question of the round, so what was
measured there is known there. Artifacts come back with the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specpilot_cli.agents.controller.gate import Progress, silent
from specpilot_cli.agents.controller.plans import key_of, normalised
from specpilot_cli.agents.controller.protocol import Question, Reply
from specpilot_cli.agents.executor import Executor, Place, Run, Task
from specpilot_cli.artifacts.io import write_atomic
from specpilot_cli.core.digest import sha256_bytes
from specpilot_cli.core.errors import ExternalFailed, UsageFault
from specpilot_cli.core.paths import cache_dir


def answer_there(place: Place, arguments: Mapping[str, Any]) -> Any:
    """What runs on the host: its own controller answers.

    Args:
        arguments: `round`, `device`, `question`, and the controller's `settings` without the stock's place.
    Returns:
        `reply`, and `files`: the text of each artifact that it rests on.
    """
    from specpilot_cli.agents.controller.client import Controller
    from specpilot_cli.agents.controller.settings import Settings

    if place.repository is None:
        raise UsageFault("A question needs the stock repository.")
    folder = cache_dir() / "controllers" / arguments["round"] / arguments["device"].replace("/", "-")
    settings = Settings.model_validate({**arguments["settings"], "stock": str(place.repository.resolve())})
    with Controller(folder, settings) as controller:
        reply = controller.ask(Question.model_validate(arguments["question"]))
    files = {name: (folder / name).read_text(encoding="utf-8") for name, _ in reply.artifacts}
    return {"reply": reply.model_dump(mode="json"), "files": files}


class RemoteGate:
    """A `Gate` over an executor.

    Args:
        settings: of the controllers (`controller.settings.Settings` as JSON), without `stock`.
        folder: where artifacts that come back are kept.
        commit: from a tree to a commit of it in the stock repository.
        run: what runs on the host.
    """

    def __init__(
        self,
        executor: Executor,
        device: str,
        round_id: str,
        stock: Path,
        settings: Mapping[str, Any],
        folder: Path,
        commit: Callable[[str], str],
        run: Run = answer_there,
    ) -> None:
        self._executor, self._device, self._round, self._stock = executor, device, round_id, stock
        self._settings, self._folder, self._commit, self._run = dict(settings), folder, commit, run

    def ask(self, question: Question, progress: Progress = silent) -> Reply:
        """See `Gate.ask`.

        Raises:
            ExternalFailed: the worker was lost every time, or an artifact came back as another.
        """
        question = normalised(question)
        task = Task(
            key=f"{self._round}/{question.kind}-{key_of(question)[:16]}",
            device=self._device,
            run=self._run,
            arguments={
                "round": self._round,
                "device": self._device,
                "question": question.model_dump(mode="json"),
                "settings": self._settings,
            },
            repository=self._stock,
            commits=(self._commit(question.tree),) if question.tree else (),
        )
        progress(f"{question.kind} goes out through {self._executor.name}")
        answer = self._executor.map([task])[0].get()
        reply = Reply.model_validate(answer["reply"])
        for name, digest in reply.artifacts:
            data = answer["files"][name].encode()
            if Path(name).name != name or sha256_bytes(data) != digest:
                raise ExternalFailed(f"{name}: came back as another file than was measured.", "Its digest differs.")
            write_atomic(self._folder / name, data)
        return reply
