"""The lattice folder: what is written is read, a kill loses nothing that was indexed, damage is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.replay_lattices import VOCABULARY, header, recording, write

from specpilot_cli.core.errors import InputUnusable, UsageFault
from specpilot_cli.replay.lattice_file import LatticeReader, LatticeWriter
from specpilot_cli.replay.steps import Steps, join


def same(a: Steps, b: Steps) -> bool:
    names = ("request", "offset", "anchor", "ids", "logprobs", "continuation", "accepted", "bonus")
    texts = all(x.id == y.id and (x.tokens == y.tokens).all() for x, y in zip(a.texts, b.texts, strict=True))
    pairs = [(getattr(a, n), getattr(b, n)) for n in names]
    if a.transitions is not None and b.transitions is not None:
        pairs.append((a.transitions, b.transitions))
    return texts and a.conditioned == b.conditioned and all(np.array_equal(x, y) for x, y in pairs)


@pytest.mark.parametrize("conditioned", [True, False])
def test_what_is_written_is_read(tmp_path: Path, conditioned: bool) -> None:
    first, second = recording(2, seed=1, conditioned=conditioned), recording(3, seed=2, conditioned=conditioned)
    index = write(tmp_path / "l", first, second)
    for name in (str(index), str(tmp_path / "l")):
        blocks = list(LatticeReader(name).blocks())
        assert same(join(blocks), join([first, second]))
    assert len(list(LatticeReader(str(index)).blocks(max_steps=1))) == 1  # readable in part
    assert LatticeReader(str(index)).caveats == ()


def test_a_kill_loses_only_what_was_not_indexed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = recording(2, seed=1), recording(2, seed=2, prefix="s")
    LatticeWriter(tmp_path, header(first)).append(first)
    (tmp_path / "shard-00001.safetensors").write_bytes(b"half a shard")  # renamed, not yet indexed
    reader = LatticeReader(str(tmp_path))
    assert "interrupted" in reader.caveats[0]
    assert same(join(list(reader.blocks())), first)
    assert "shard-00001.safetensors is not in the index" in capsys.readouterr().err
    writer = LatticeWriter(tmp_path, header(first))
    assert writer.recorded == {"r0", "r1"}
    writer.append(second)
    writer.finish()
    assert same(join(list(LatticeReader(str(tmp_path)).blocks())), join([first, second]))
    with pytest.raises(UsageFault, match="another recording"):
        LatticeWriter(tmp_path, header(first))


def broken(steps: Steps, tensor: str, place: tuple[int, ...], value: float) -> Steps:
    array = np.array(getattr(steps, tensor))
    array[place] = value
    return replace(steps, **{tensor: array})


CASES = [
    ("logprobs", (3, 1, 2), np.nan, "tensor 'logprobs' is NaN at step 3, position 1"),
    ("logprobs", (3, 1, 2), -np.inf, "tensor 'logprobs' is infinite at step 3, position 1"),
    ("logprobs", (4, 2, 1), -30, "tensor 'logprobs' is not sorted best first at step 4, position 2"),
    ("transitions", (5, 2, 1, 0), np.nan, "tensor 'transitions' is NaN at step 5, position 2"),
    ("transitions", (5, 2, 1, 0), 0.5, "tensor 'transitions' is above 0, so no log-probability, at step 5, position 2"),
    ("transitions", (5, 2, 1), -0.1, "probabilities that add up to more than 1 at step 5, position 2"),
    ("transitions", (5, 0, 1), -30, "tensor 'transitions' depends on a parent at position 0 at step 5"),
    ("ids", (2, 1, 0), VOCABULARY, f"tensor 'ids' has an id outside 0..{VOCABULARY - 1} at step 2, position 1"),
    ("ids", (2, 1, 0), -1, "tensor 'ids' has an id outside"),
    ("continuation", (1, 2), VOCABULARY + 5, "tensor 'continuation' has an id outside"),
    ("continuation", (1, 1), -1, "tensor 'continuation' goes on behind its end at step 1"),
    ("anchor", (6,), 49, "tensor 'anchor' is not the token of the text at step 6"),
    ("accepted", (6,), 9, "tensor 'accepted' is impossible at step 6"),
    ("offset", (6,), 5, "tensor 'offset' does not grow within its request at step 6"),
    ("request", (6,), 7, "tensor 'request' is no index at step 6"),
]


@pytest.mark.parametrize(("tensor", "place", "value", "message"), CASES)
def test_damage_is_named(tmp_path: Path, tensor: str, place: tuple[int, ...], value: float, message: str) -> None:
    good = recording(2, seed=3)
    write(tmp_path, good, broken(good, tensor, place, value))
    with pytest.raises(InputUnusable) as caught:
        list(LatticeReader(str(tmp_path)).blocks())
    assert "shard-00001.safetensors: " in str(caught.value)
    assert message in str(caught.value)


def test_a_repeated_candidate_is_named(tmp_path: Path) -> None:
    good = recording(1, seed=3)
    write(tmp_path, broken(good, "ids", (2, 1, 3), int(good.ids[2, 1, 0])))
    with pytest.raises(InputUnusable, match="'ids' repeats a candidate at step 2, position 1"):
        list(LatticeReader(str(tmp_path)).blocks())


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.999])
def test_a_truncated_shard_is_named(tmp_path: Path, keep: float) -> None:
    write(tmp_path, recording(2, seed=3))
    path = tmp_path / "shard-00000.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data))])
    with pytest.raises(InputUnusable, match=r"shard-00000\.safetensors: is truncated"):
        list(LatticeReader(str(tmp_path)).blocks())


def test_shapes_other_than_the_header_says(tmp_path: Path) -> None:
    steps = recording(1, seed=3)
    writer = LatticeWriter(tmp_path, header(steps, candidates=steps.width + 1))
    writer.append(steps)
    with pytest.raises(InputUnusable, match="tensor 'ids' has shape"):
        list(LatticeReader(str(tmp_path)).blocks())


def test_missing_and_altered_shards(tmp_path: Path) -> None:
    steps = recording(1, seed=3)
    write(tmp_path, steps)
    path = tmp_path / "shard-00000.safetensors"
    data = bytearray(path.read_bytes())
    at = data.index(np.float32(steps.logprobs[0, 0, 0]).tobytes())
    data[at : at + 4] = np.float32(steps.logprobs[0, 0, 0] + 1e-6).tobytes()
    path.write_bytes(data)
    with pytest.raises(InputUnusable, match="was altered"):
        list(LatticeReader(str(tmp_path)).blocks())
    path.unlink()
    with pytest.raises(InputUnusable, match="is missing"):
        list(LatticeReader(str(tmp_path)).blocks())


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.booleans())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_damaged_byte_passes(tmp_path: Path, seed: int, count: int, cut: bool) -> None:
    """Any changed byte of a shard is refused as unusable input, whatever it hits."""
    folder = tmp_path / f"{seed}-{count}-{cut}"
    if not folder.exists():
        write(folder, recording(1, seed=3))
    path = folder / "shard-00000.safetensors"
    rng, data = np.random.default_rng(seed), bytearray(path.read_bytes())
    for at in rng.integers(0, len(data), count).tolist():
        data[at] ^= int(rng.integers(1, 256))
    path.write_bytes(data[: rng.integers(1, len(data))] if cut else data)
    with pytest.raises(InputUnusable) as caught:
        list(LatticeReader(str(folder)).blocks())
    assert "shard-00000.safetensors" in str(caught.value)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_index_never_crashes(tmp_path: Path, seed: int) -> None:
    """A changed byte of the index is refused, or it was a harmless one: nothing else is ever raised."""
    folder = tmp_path / str(seed)
    if not folder.exists():
        write(folder, recording(1, seed=3))
    path = folder / "lattice.json"
    rng, data = np.random.default_rng(seed), bytearray(path.read_bytes())
    data[int(rng.integers(0, len(data)))] = int(rng.integers(32, 127))
    path.write_bytes(data)
    try:
        steps = join(list(LatticeReader(str(folder)).blocks()))
    except InputUnusable:
        return
    assert len(steps) == 12
