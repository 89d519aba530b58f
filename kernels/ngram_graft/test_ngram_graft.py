"""The reference against the replay's builder, the kernels against the reference, and planted faults against both.

Triton's interpreter has to be chosen before Triton is imported, so its tests run in a process of their own.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from specpilot_kernels.best_first_select import op  # noqa: E402
from specpilot_kernels.best_first_select import reference as selection  # noqa: E402
from specpilot_kernels.ngram_graft import cases, faults, graft, record, reference  # noqa: E402

from specpilot_cli.replay.builders import best_first, ngram  # noqa: E402
from specpilot_cli.replay.steps import UNKNOWN, Steps, Text  # noqa: E402
from specpilot_cli.replay.trees import EMPTY, Trees, check  # noqa: E402

HERE = Path(__file__).parent
VOCABULARY = 12


def run(script: str, *words: str, interpret: bool = True) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(HERE.parent / "_testing")}
    if interpret:
        env["TRITON_INTERPRET"] = "1"
    argv = [sys.executable, "-W", "ignore", *([script] if script == "-c" else [str(HERE / script)]), *words]
    return subprocess.run(argv, capture_output=True, text=True, env=env, check=False)


def recorded(seed: int, positions: int, width: int, tokens: int, length: int) -> Steps:
    """Two requests, a step at every token from the second on; texts of few tokens; lattices that agree with the n-gram
    chain on their first 0, 1, ... positions, at any rank, or all the way."""
    rng = np.random.default_rng(seed)
    texts = tuple(
        Text(str(r), rng.integers(0, (2, 4)[r], tokens + 1).astype(np.int32), 1) for r in range(2)
    )  # fmt: skip
    count = 2 * tokens
    scores = np.log(rng.dirichlet(np.full(width, 0.3), (count, positions, width)) + 1e-9).astype(np.float32)
    scores[:, 0] = scores[:, 0, :1]
    ids = np.argsort(rng.random((count, positions, VOCABULARY)), -1)[..., :width].astype(np.int32)
    nothing = np.full(count, UNKNOWN, dtype=np.int32)
    request, offset = (part.astype(np.int32).ravel() for part in np.indices((2, tokens)))
    anchor = np.array([texts[r].tokens[1 + o] for r, o in zip(request, offset, strict=True)], dtype=np.int32)
    continuation = np.full((count, positions + 1), UNKNOWN, dtype=np.int32)
    steps = Steps(texts, request, offset, anchor, ids, scores[:, :, 0], scores, continuation, nothing, nothing)
    chains = ngram.chains(steps, length, ngram.SUFFIX)
    for s in range(count):
        for d in range(min(rng.integers(0, length + 3), length, positions)):
            if chains[s, d] != UNKNOWN and chains[s, d] not in ids[s, d]:
                ids[s, d, rng.integers(0, width)] = chains[s, d]
    return steps


SIZES = [
    (8, 4, 4, 0), (8, 2, 2, 0), (11, 3, 3, 2), (16, 16, 2, 16), (32, 8, 4, 0), (63, 15, 3, 0), (63, 5, 2, 5),
    (24, 6, 1, 6),
]  # fmt: skip
"""Nodes, positions, candidates, length; 0: a quarter of the nodes, `ngram_grafted` itself."""


def batch_of(trees: Trees) -> op.Tree:
    """What selection gives, of the replay's best-first trees."""
    made = op.Tree.empty(len(trees), trees.slots, torch.device("cpu"))
    for name in cases.FIELDS:
        getattr(made, name).copy_(torch.from_numpy(getattr(trees, name)))
    made.tokens.masked_fill_(made.parents == EMPTY, 0)
    made.scores.masked_fill_(made.parents == EMPTY, 0)
    relink(made)
    return made


def relink(tree: op.Tree) -> None:
    """Links and mask by selection's own definition; every node is the candidate of its slot's number."""
    nodes = tree.parents.shape[1]
    for b in range(len(tree.parents)):
        nodes_of = zip(tree.parents[b].tolist(), tree.depths[b].tolist(), range(nodes), strict=True)
        listed = [(parent, depth - 1, slot) for parent, depth, slot in nodes_of if parent != EMPTY]
        found = selection.arrays(listed, tree.tokens[b].expand(nodes, -1), nodes)
        for name in ("next_token", "next_sibling", "mask"):
            getattr(tree, name)[b].copy_(found[name])


def compared(plain: ModuleType, seed: int, size: tuple[int, int, int, int]) -> Iterator[tuple[str, bool]]:
    """Every part of every tree: whether the reference `plain` made the replay's."""
    nodes, positions, width, fixed = size
    length = fixed or min(nodes // ngram.SHARE, positions)
    steps = recorded(seed, positions, width, 30, length)
    trees = best_first.best_first(steps, nodes)
    expected = (
        ngram.graft(trees, ngram.chains(steps, length, ngram.SUFFIX), nodes)
        if fixed
        else ngram.suffix_grafted(steps, nodes)
    )
    check(expected)
    made = batch_of(trees)
    history = torch.from_numpy(np.stack([text.tokens for text in steps.texts]))
    places = torch.from_numpy(steps.offset).long() + 1
    later = history.clone()
    slots = torch.from_numpy(steps.request).long()
    plain.graft(made, later, slots, places, torch.from_numpy(steps.anchor).long(), length)
    assert torch.equal(later, history)
    whole = batch_of(expected)
    for name in (*cases.FIELDS, "next_token", "next_sibling", "mask"):
        yield name, torch.equal(getattr(made, name), getattr(whole, name))


@pytest.mark.parametrize("size", SIZES)
def test_the_reference_makes_the_replays_trees(size: tuple[int, int, int, int]) -> None:
    for seed in range(4):
        assert [name for name, same in compared(reference, seed, size) if not same] == []


def test_the_replays_trees_are_of_every_kind() -> None:
    """Chains that the tree has wholly, partly and not at all, dropped nodes among them, short trees, no chain."""
    seen: dict[str, int] = dict.fromkeys(("none", "whole", "part", "nothing", "short", "dropped", "filled"), 0)
    for size in SIZES:
        nodes, positions, width, fixed = size
        length = fixed or min(nodes // ngram.SHARE, positions)
        steps = recorded(0, positions, width, 30, length)
        trees, chains = best_first.best_first(steps, nodes), ngram.chains(steps, length, ngram.SUFFIX)
        for s in range(len(steps)):
            own = [
                (int(p), int(t)) for p, t in zip(trees.parents[s], trees.tokens[s], strict=True) if p != EMPTY
            ]  # fmt: skip
            at, path = -1, []
            for token in chains[s].tolist():
                at = own.index((at, token)) if (at, token) in own else EMPTY
                if at == EMPTY:
                    break
                path.append(at)
            found = bool((chains[s] != UNKNOWN).all())
            kept = sum(slot < nodes - length for slot in path)
            seen["none"] += not found
            seen["short"] += found and len(own) < nodes
            seen["whole"] += found and len(path) == length
            seen["part"] += found and 0 < len(path) < length
            seen["nothing"] += found and not path
            seen["dropped"] += found and len(path) > kept
            seen["filled"] += found and kept > 0 and len(own) > nodes - length
    assert min(seen.values()) >= 20, seen


@pytest.mark.parametrize("what", faults.IN_REFERENCE)
def test_a_fault_of_the_reference_is_seen(what: str, tmp_path: Path) -> None:
    plain = faults.planted("reference.py", faults.IN_REFERENCE[what], tmp_path)
    try:
        assert not all(same for size in SIZES for _, same in compared(plain, 1, size))
    except RuntimeError as error:  # more nodes than there are slots
        assert "must match" in str(error)


def test_record_by_hand() -> None:
    history = torch.full((3, 6), -7, dtype=torch.int32)
    # five tokens committed: the anchor 9 stood at 3, two drafts and the new anchor follow, the last behind the row
    given = (torch.tensor([1]), torch.tensor([6]), torch.tensor([9]), torch.tensor([[4, 5, 6, 8]]))
    record.record(history, *given, torch.tensor([3], dtype=torch.int32))
    assert history.tolist() == [[-7] * 6, [-7, -7, -7, 9, 4, 5], [-7] * 6]


def test_the_chain_by_hand() -> None:
    def of(*text: int, length: int = 4) -> list[int]:
        return reference.chain(torch.tensor(text[:-1], dtype=torch.int32), text[-1], length)

    assert of(1, 2, 3, 8, 9, 1, 2, 3) == [8, 9, 1, 2]
    assert of(1, 2, 3, 8, 1, 2, 3, 9, 1, 2, 3, length=2) == [9, 1]  # the latest
    assert of(5, 5, 5, 5) == [5, 5, 5, 5]  # they may overlap
    assert of(1, 2, 3, 1, 2, 3) == [1, 2, 3, 1]
    assert of(0, 2, 3, 1, 2, 3) == [1, 2, 3, 1]  # two tokens are enough
    assert of(1, 2, 3, 8, 2, 3, 9, 1, 2, 3) == [8, 2, 3, 9]  # the longer end, though it stands further back
    assert of(0, 1, 2, 3, 4, 5, 6, 7, 9, 1, 2, 3, 4, 5, 6, 8, 0, 1, 2, 3, 4, 5, 6, length=1) == [
        8
    ]  # beyond six: the latest
    assert of(1, 2, 3, 4) == of(7) == of(7, 7) == of(3, 5, 3) == []


@pytest.mark.parametrize(("plan", "trees"), [("few", 80), pytest.param("cpu", 1200, marks=pytest.mark.slow)])
def test_equal_to_the_reference_in_the_interpreter(plan: str, trees: int) -> None:
    done = run("cases.py", plan)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 wrong" in done.stdout and int(done.stdout.split()[0]) > trees, done.stdout
    assert int(done.stdout.split()[2]) > 0.4 * trees, done.stdout


@pytest.mark.parametrize(("which", "count"), [("few", 6), pytest.param("all", 36, marks=pytest.mark.slow)])
def test_planted_faults_of_the_kernels_are_seen(which: str, count: int) -> None:
    done = run("faults.py", which)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} faults, 0 unseen" in done.stdout


@pytest.mark.gpu
def test_equal_to_the_reference_on_the_device() -> None:
    done = run("cases.py", "cuda", interpret=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 wrong" in done.stdout


AS_IN_SGLANG = "triton.next_power_of_2 = lambda n: 1 << (n - 1).bit_length() if n > 0 else 1"
"""SGLang puts a plain function there, which no kernel may then call."""


def test_compiles_for_hopper() -> None:
    """To cubins without spills; barriers stand between what is read and what is written."""
    code = (
        f"import triton; {AS_IN_SGLANG}; from mount import mount; mount();"
        "from specpilot_kernels.ngram_graft import compiled as c;"
        "made = [c.compile_record(), *map(c.compile_search, (1, 32)), *(c.compile_graft(*size) for size in c.SIZES)];"
        "found = [c.resources(code) for code in made]; print(found);"
        "assert all(one['stack_bytes'] == 0 for one in found), found;"
        "ptx = made[-1].asm['ptx']; first = ptx.index('st.global');"
        "assert ptx.rindex('bar.sync', 0, first) > ptx.rindex('ld.global', 0, first)"
    )
    done = run("-c", code, interpret=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_bad_arguments_are_refused() -> None:
    case = cases.draw_case((2, 8, 2), 20, 0)
    tree, (history, *rest) = case.tree, case.texts("cpu")
    with pytest.raises(ValueError, match="history must be int32"):
        graft.graft(tree, history.long(), *rest, 2)
    with pytest.raises(ValueError, match="dense along L"):
        graft.graft(tree, history[:, ::2], *rest, 2)
    with pytest.raises(ValueError, match="slots must be contiguous"):
        graft.graft(tree, history, rest[0].int(), *rest[1:], 2)
    with pytest.raises(ValueError, match="not 8 and 9"):
        graft.graft(tree, history, *rest, 9)
    tree.mask = tree.mask[:, :, :8]
    with pytest.raises(ValueError, match="mask must be"):
        graft.graft(tree, history, *rest, 2)
    with pytest.raises(ValueError, match="counts must be contiguous"):
        record.record(history, *rest, torch.ones(2, 3, dtype=torch.int64), torch.ones(2, dtype=torch.int64))


def test_a_chain_of_no_tokens_does_nothing() -> None:
    case = cases.draw_case((9, 3, 0), 20, 0)
    before = case.tree.to("cpu")
    graft.graft(case.tree, *case.texts("cpu"), 0)
    assert all(torch.equal(value, getattr(before, name)) for name, value in vars(case.tree).items())


def test_what_engines_copy_imports_nothing_else() -> None:
    for name in ("graft.py", "record.py", "reference.py"):
        lines = [line for line in (HERE / name).read_text().splitlines() if line.startswith(("import ", "from "))]
        allowed = ("__future__", "typing", "torch", "triton", "triton.language", "specpilot_kernels.ngram_graft")
        assert all(line.split()[1].startswith(allowed) for line in lines), lines
