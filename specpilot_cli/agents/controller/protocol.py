"""Questions to the controller and its answers: one JSON object a line, over the process's stdin and stdout."""

from __future__ import annotations

from specpilot_cli.artifacts.base import GitTree, Record
from specpilot_cli.artifacts.round import Figures, Reply
from specpilot_cli.artifacts.round import QuestionKind as Kind

__all__ = ["Figures", "Kind", "Question", "Reply"]

# noise: stock against stock, the bar of every later question (asked once, kept).
# profile: where a step of the tree spends its time. screen: a short paired run on develop requests.
# force: token forcing of the last screen's outputs. promote: a full paired run on develop requests, then forcing.
# final: two paired runs on sealed requests with another seed each, forcing of both, and the seal.


class Question(Record):
    """What is asked of a tree. Equal questions have one answer: it is measured once and kept."""

    kind: Kind
    tree: GitTree | None = None
    """A tree in the stock repository's object store (the round put it there); None for `noise`."""
    vary: tuple[str, ...] = ()
    """Keys of /server_info in which the tree may differ from stock."""
    flags: tuple[str, ...] = ()
    """Engine flags of the candidate alone."""
