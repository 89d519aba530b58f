"""The recorder against a made-up engine on a CPU: what it writes is what the engine drafted, scored and accepted."""

from __future__ import annotations

import importlib
import json
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

V, D, K, RANK, HIDDEN = 48, 5, 6, 4, 8
KINDS = ("DFLASH2", "DSPARK", "GATED", "DFLASH")


@contextmanager
def recorder_of(worktree: Path) -> Iterator[Any]:
    """The recorder's modules, without SGLang's own imports (which need its whole environment)."""
    kept = {name: sys.modules.pop(name) for name in [*sys.modules] if name.split(".")[0] == "sglang"}
    for name in ("sglang", "sglang.srt", "sglang.srt.speculative"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(worktree / name.replace(".", "/"))]
    names = ("lattice_tensors", "lattice_file", "lattice_writer", "lattice_recorder")
    try:
        yield types.SimpleNamespace(**{n: importlib.import_module(f"sglang.srt.speculative.{n}") for n in names})
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
            del sys.modules[name]
        sys.modules.update(kept)


@pytest.fixture(scope="module")
def made() -> Iterator[Any]:
    """The modules of the worktree that the tests run in."""
    with recorder_of(Path.cwd()) as modules:
        yield modules


@dataclass
class Request:
    """What the recorder reads of SGLang's `Req`."""

    rid: str
    origin_input_ids: list[int]
    output_ids: list[int]
    limit: int
    top_k: int = 1
    finished_len: int | None = None
    grammar: Any = None
    custom_logit_processor: Any = None
    multimodal_inputs: Any = None
    log: list[dict[str, Any]] = field(default_factory=list)
    """The engine's own account of every step that counted."""

    @property
    def sampling_params(self) -> Any:
        """Greedy, without penalties."""
        plain = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "logit_bias": None}
        return types.SimpleNamespace(top_k=self.top_k, min_new_tokens=0, **plain)

    def finished(self) -> bool:
        """As `Req.finished`."""
        return self.finished_len is not None


class Head(torch.nn.Module):
    """A Markov head with SGLang's interface; its bias is rounded before it is added."""

    def __init__(self, gated: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.markov_head_type = "gated" if gated else "vanilla"
        self.w1, self.w2 = torch.randn(V, RANK, dtype=dtype), torch.randn(V, RANK, dtype=dtype)
        self.gate = torch.randn(HIDDEN + RANK, RANK, dtype=dtype) if gated else None

    def exact(self) -> Head:
        """The same head in float64."""
        found = Head(self.gate is not None, torch.float64)
        found.w1, found.w2 = self.w1.double(), self.w2.double()
        found.gate = None if self.gate is None else self.gate.double()
        return found

    def apply_step_logits(self, logits: torch.Tensor, *, token_ids: Any, hidden_states: Any) -> torch.Tensor:
        """Step logits [..., V]."""
        left = self.w1[token_ids]
        if self.gate is not None:
            left = left * torch.sigmoid(torch.cat((hidden_states, left), -1) @ self.gate)
        return logits + left @ self.w2.T


class Engine:
    """Drafts from random rows; the target accepts about every other draft."""

    def __init__(self, made: Any, kind: str, folder: Path, dtype: torch.dtype, *, interval: int = 1, window: int = 8):
        torch.manual_seed(7)
        self.kind, self.dtype, self.source = kind, dtype, np.random.default_rng(3)
        self.head = Head(kind == "GATED", dtype)  # after the seed: the same tables in every engine
        self.left, self.right = torch.randn(V, RANK), torch.randn(V, RANK)
        rec = made.lattice_recorder
        lattice = {
            "DFLASH2": rec.selector_head(types.SimpleNamespace(_transform_unary_logits=lambda x: x.float())),
            "DFLASH": rec.argmax_head(K),
        }.get(kind) or rec.markov_head(self.head, K)
        self.recorder = rec.LatticeRecorder(
            str(folder), interval=interval, max_requests=window, max_bs=4, depth=D, vocab_size=V, width=K,
            drafter="DSPARK" if kind == "GATED" else kind, lattice=lattice,
        )  # fmt: skip

    def draft(self, anchors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, list[dict[str, Any]]]:
        """Drafts [N, D], draft rows [N, D, H], and what each request's scores were; fills the tap."""
        n = len(anchors)
        # around 40, where the spacing of bfloat16 is 0.25 and ties are common
        logits, hidden = (torch.randn(n * D, V) * 3 + 40).to(self.dtype), torch.randn(n, D, HIDDEN).to(self.dtype)
        self.recorder.tap.put_logits(logits)
        base, truth = logits.view(n, D, V), [{"base": rows.float()} for rows in logits.view(n, D, V)]
        if self.kind == "DFLASH":
            return base.argmax(-1), hidden, truth
        if self.kind == "DFLASH2":
            unary, ids = (x.flip(-1).roll(2, -1) for x in base.float().topk(K, -1))  # in no order
            before = torch.cat((anchors.view(n, 1, 1).expand(-1, 1, K), ids[:, :-1]), 1)
            scores = unary.unsqueeze(2) + torch.einsum("ndpr,ndcr->ndpc", self.left[before], self.right[ids])
            self.recorder.tap.put_selector(ids, scores)
            path, rank = [], torch.zeros(n, dtype=torch.long)
            for d in range(D):
                rank = scores[torch.arange(n), d, rank].argmax(-1)
                path.append(ids[torch.arange(n), d, rank])
            for i in range(n):
                truth[i] |= {"ids": ids[i], "scores": scores[i]}
            return torch.stack(path, 1), hidden, truth
        path, last, head = [], anchors, self.head.exact()
        noise = 0.0 if self.dtype == torch.float32 else 2.0**-4
        for d in range(D):  # rounded at another place than the head's own sum, as in a pass of another shape
            exact = head.apply_step_logits(base[:, d].double(), token_ids=last, hidden_states=hidden[:, d].double())
            last = (exact + noise * (2 * torch.rand(n, V) - 1)).to(self.dtype).argmax(-1)
            path.append(last)
        return torch.stack(path, 1), hidden, truth

    def step(self, reqs: list[Request]) -> list[Request]:
        """One decode step of a batch; the requests that go on."""
        anchors = torch.tensor([req.output_ids[-1] for req in reqs])
        drafts, hidden, truth = self.draft(anchors)
        accepted, bonus = [], []
        for row in drafts.tolist():
            taken = int(np.argmin([*(self.source.random(D) < 0.6), False]))
            other = int(self.source.integers(V - 1))
            accepted.append(taken)
            bonus.append(other if taken == D or other < row[taken] else other + 1)
        position = torch.tensor([len(req.origin_input_ids) + len(req.output_ids) - 1 for req in reqs])
        self.recorder.observe(
            reqs=reqs, prefix_lens=position, block=torch.cat((anchors[:, None], drafts), 1),
            accepted=torch.tensor(accepted), bonus=torch.tensor(bonus),
            hidden=hidden if self.kind == "GATED" else None,
        )  # fmt: skip
        for i, req in enumerate(reqs):
            if req.finished():
                continue
            req.log.append({
                "offset": len(req.output_ids) - 1, "drafts": drafts[i].tolist(), "accepted": accepted[i],
                "bonus": bonus[i], "hidden": hidden[i], **truth[i],
            })  # fmt: skip
            req.output_ids += [*drafts[i, : accepted[i]].tolist(), bonus[i]]
        return reqs

    def serve(self, reqs: list[Request]) -> None:
        """To the end. As with overlapped scheduling, one more step is launched before an end is known."""
        running = list(reqs)
        while running:
            self.step(running)
            ended = [req for req in running if len(req.output_ids) >= req.limit]
            if ended:
                self.step(running)  # launched before the results were looked at
                for req in ended:
                    drop = len(req.log) - 1  # that step of an ended request is thrown away
                    req.output_ids = req.output_ids[: req.log[drop]["offset"] + 1]
                    req.log = req.log[:drop]
                    req.finished_len = req.limit
                    self.recorder.finish(req.rid)
            running = [req for req in running if not req.finished()]


def requests(count: int = 6, **more: Any) -> list[Request]:
    """Requests with prompts and limits of several lengths, the first token given by prefill."""
    return [Request(f"r{i}", list(range(3 + i)), [i + 1], 20 + 7 * i, **more) for i in range(count)]


def serve(made: Any, kind: str, folder: Path, dtype: torch.dtype = torch.bfloat16, **more: Any) -> list[Request]:
    """Serve requests and close the recorder."""
    engine, reqs = Engine(made, kind, folder, dtype, **more), requests()
    engine.serve(reqs[:3])
    engine.serve(reqs[3:])
    engine.recorder.close()
    return reqs


def read(folder: Path) -> tuple[dict[str, Any], dict[str, dict[str, np.ndarray]]]:
    """The index, and every request's arrays by its id."""
    index = json.loads((folder / "lattice.json").read_text())
    found = {}
    for shard in index["body"]["shards"]:
        arrays = load_file(folder / shard["file"])
        for i, name in enumerate(shard["requests"]):
            mine = arrays["request"] == i
            found[name] = {key: arrays[key][mine] for key in arrays if arrays[key].shape[:1] == mine.shape}
            start, end = arrays["text_start"][i : i + 2]
            found[name]["tokens"] = arrays["text"][start:end]
    return index, found


def greedy(one: dict[str, np.ndarray]) -> list[list[int]]:
    """Tokens of the greedy path of every step, ties to the lowest rank: plain loops."""
    paths = []
    for s in range(len(one["ids"])):
        path, rank = [], 0
        for d in range(D):
            row = one["transitions"][s, d, rank] if "transitions" in one else one["logprobs"][s, d]
            rank = max(range(K), key=lambda c: (row[c], -c))
            path.append(int(one["ids"][s, d, rank]))
        paths.append(path)
    return paths


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_is_there_and_its_greedy_path_is_the_draft(made: Any, kind: str, tmp_path: Path) -> None:
    reqs = serve(made, kind, tmp_path)
    index, found = read(tmp_path)
    assert index["complete"] and sorted(found) == sorted(req.rid for req in reqs)
    assert index["body"]["new_tokens"] == max(req.limit for req in reqs)
    moved = [caveat for caveat in index["caveats"] if "changed places" in caveat]
    assert index["caveats"] == moved and bool(moved) == (kind in ("DSPARK", "GATED")), "drafts come from another pass"
    for req in reqs:
        one, log = found[req.rid], req.log
        for name in ("offset", "accepted", "bonus"):
            assert one[name].tolist() == [step[name] for step in log]
        assert greedy(one) == [step["drafts"] for step in log]
        assert one["tokens"].tolist() == req.origin_input_ids + req.output_ids
        for s, step in enumerate(log):
            after = req.output_ids[step["offset"] + 1 :][: D + 1]
            assert one["continuation"][s].tolist() == after + [-1] * (D + 1 - len(after))
    assert max(step["accepted"] for req in reqs for step in req.log) == D, "whole blocks were accepted too"


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_the_drafters_own(made: Any, kind: str, tmp_path: Path) -> None:
    """In float32 nothing changes places: every score against float64 sums of another form."""
    reqs = serve(made, kind, tmp_path, torch.float32)
    index, found = read(tmp_path)
    assert index["caveats"] == [] and index["body"]["drafter"] == ("DSPARK" if kind == "GATED" else kind)
    for req in reqs:
        one = found[req.rid]
        for s, step in enumerate(req.log):
            ids, base = torch.tensor(one["ids"][s]).long(), step["base"].double()
            wanted = base.log_softmax(-1).gather(-1, ids)
            assert np.allclose(one["logprobs"][s], wanted, atol=1e-5)
            if kind == "DFLASH":
                assert "transitions" not in one and set(ids[0].tolist()) == set(base[0].topk(K).indices.tolist())
                continue
            parents = torch.cat((torch.full((1, K), req.output_ids[step["offset"]]), ids[:-1]))
            wanted = pairwise(kind, step, parents, ids)
            assert np.allclose(one["transitions"][s], wanted, atol=2e-5)
            assert (one["transitions"][s, 0] == one["transitions"][s, 0, 0]).all()
            assert (np.diff(one["transitions"][s, 0, 0]) <= 0).all() and (np.diff(one["logprobs"][s, 1:]) <= 1e-6).all()


def pairwise(kind: str, step: dict[str, Any], parents: Any, ids: Any) -> np.ndarray:
    """[D, K, K] log p(child | parent) in float64, row by row."""
    torch.manual_seed(7)
    head, out = Head(kind == "GATED", torch.float32).exact(), np.zeros((D, K, K))
    for d in range(D):
        for p in range(K):
            if kind == "DFLASH2":
                rank = 0 if d == 0 else step["ids"][d - 1].tolist().index(int(parents[d, p]))
                row = step["scores"][d, rank].double().log_softmax(-1)
                out[d, p] = [row[step["ids"][d].tolist().index(int(c))] for c in ids[d]]
            else:
                rows = {"token_ids": parents[d, p], "hidden_states": step["hidden"][d].double()}
                out[d, p] = head.apply_step_logits(step["base"][d].double(), **rows).log_softmax(-1)[ids[d]]
    return out


def test_every_request_of_a_batch_has_its_turn(made: Any, tmp_path: Path) -> None:
    engine = Engine(made, "DFLASH", tmp_path, torch.bfloat16, window=1)
    reqs = [Request(f"r{i}", [1, 2], [i + 1], 40) for i in range(3)]
    engine.serve(reqs)
    engine.recorder.close()
    _, found = read(tmp_path)
    shortest = min(len(req.log) for req in reqs)
    assert all(len(found[req.rid]["offset"]) >= shortest // 3 for req in reqs)


def test_steps_of_requests_that_have_ended_are_not_awaited(made: Any, tmp_path: Path) -> None:
    engine, reqs = Engine(made, "DFLASH", tmp_path, torch.bfloat16), requests(2)
    engine.serve(reqs)
    engine.step(reqs)
    engine.recorder.close()
    assert read(tmp_path)[0]["complete"]


def test_sampling_takes_every_nth_step(made: Any, tmp_path: Path) -> None:
    reqs = serve(made, "DSPARK", tmp_path, interval=3, window=2)
    _, found = read(tmp_path)
    taken = {name: set(one["offset"].tolist()) for name, one in found.items()}
    for req in reqs:
        offsets = {step["offset"] for step in req.log}
        assert taken.get(req.rid, set()) < offsets
    assert len(taken) >= 5 and sum(map(len, taken.values())) <= 2 * (1 + sum(len(req.log) for req in reqs) // 3)


def test_a_recording_is_continued_and_another_one_refused(made: Any, tmp_path: Path) -> None:
    serve(made, "DFLASH2", tmp_path)
    before = (tmp_path / "shard-00000.safetensors").read_bytes()
    serve(made, "DFLASH2", tmp_path)
    index, found = read(tmp_path)
    assert len(index["body"]["shards"]) == 2 and (tmp_path / "shard-00000.safetensors").read_bytes() == before
    assert sorted(found) == sorted([f"r{i}" for i in range(6)] + [f"r{i}#2" for i in range(6)])
    with pytest.raises(ValueError, match="another recording"):
        serve(made, "DSPARK", tmp_path)


def test_only_greedy_unconstrained_requests_are_recorded(made: Any, tmp_path: Path) -> None:
    engine = Engine(made, "DSPARK", tmp_path, torch.bfloat16)
    reqs = [*requests(1), *[Request("sampled", [1], [2], 20, top_k=5), Request("json", [1], [2], 20, grammar=object())]]
    engine.serve(reqs)
    engine.recorder.close()
    assert sorted(read(tmp_path)[1]) == ["r0"]


def test_a_wrong_lattice_is_left_out_and_said(made: Any, tmp_path: Path) -> None:
    """Scores of another step: the engine's drafts are not their greedy path."""
    engine = Engine(made, "DSPARK", tmp_path, torch.bfloat16)
    put = engine.recorder.tap.put
    engine.recorder.tap.put = lambda *rows: None if engine.recorder.tap._buffers else put(*rows)  # its first rows stay
    engine.serve(requests(1))
    engine.recorder.close()
    index, found = read(tmp_path)
    assert len(found["r0"]["offset"]) == 1 and any("greedy path is not" in caveat for caveat in index["caveats"])


def test_steps_that_contradict_the_text_or_come_twice_are_left_out(made: Any, tmp_path: Path) -> None:
    files = made.lattice_file
    steps = {
        "position": np.array([2, 2, 4, 7]), "accepted": np.array([0, 1, 2, 1]), "bonus": np.array([9, 6, 9, 9]),
        "drafts": np.array([[4, 5, 3], [4, 5, 3], [6, 7, 8], [9, 9, 9]]), "tolerance": np.zeros((4, 2), np.float32),
        "ids": np.array([[[5, 1], [3, 1]], [[5, 1], [3, 1]], [[7, 1], [8, 1]], [[9, 1], [9, 1]]]),
        "logprobs": np.log(np.full((4, 2, 2), 0.5, np.float32)),
    }  # fmt: skip
    output = np.array([4, 5, 6, 7, 8, 9])
    doubts = files.Doubts()
    kept = files.steps_of(files.Recorded("a", np.concatenate([[1, 2], output]), 2, 6, steps), doubts)
    assert kept["offset"].tolist() == [0, 2] and kept["accepted"].tolist() == [1, 2]
    assert doubts.counts == {"steps of retracted requests were taken again": 1}
    steps["bonus"][2] = 3
    kept = files.steps_of(files.Recorded("a", np.concatenate([[1, 2], output]), 2, 6, steps), doubts)
    assert kept["offset"].tolist() == [0] and doubts.counts["steps contradict the text of their request"] == 1


def test_a_failing_disk_never_stops_the_engine(made: Any, tmp_path: Path) -> None:
    engine = Engine(made, "DSPARK", tmp_path, torch.bfloat16)
    engine.recorder._writer.folder.folder = tmp_path / "gone"
    engine.serve(requests(2))
    engine.recorder.close()
    assert not (tmp_path / "gone").exists() and read(tmp_path)[1] == {}
