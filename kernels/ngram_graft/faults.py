"""Planted faults that the tests have to see: `TRITON_INTERPRET=1 python faults.py few|all` plants those of the kernels.

A fault is a source file with one piece of text replaced, loaded beside the right one.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1] / "_testing")
    from mount import mount

    mount()

from specpilot_kernels.ngram_graft import cases

HERE = Path(__file__).resolve().parent
Fault = tuple[str, str]

IN_GRAFT: dict[str, Fault] = {
    "reads behind the text": ("fits = place < end\n", "fits = place < end + 4\n"),
    "counts the tail itself": ("fits = place < end\n", "fits = place <= end\n"),
    "reads another request's text": ("+ tl.load(slots + request).to(tl.int64) * pitch", "+ request * pitch"),
    "takes a lane's first place": ("tl.maximum(best, tl.where", "tl.where(best >= 0, best, tl.where"),
    "takes the first place of all": ("tl.max(best, 0)", "tl.min(tl.where(best < 0, 1 << 30, best), 0)"),
    "takes the latest place, not the longest": ("(agree << PLACE_BITS) + place", "(1 << PLACE_BITS) + place"),
    "is content with one token": ("agree >= LEAST", "agree >= 1"),
    "wants three tokens": ("agree >= LEAST", "agree > LEAST"),
    "counts a seventh token": ("tl.static_range(1, MOST)", "tl.static_range(1, MOST + 1)"),
    "counts a token behind one that differs": (
        "fits = fits & (tl.load(text + place - back", "fits = (place >= back) & (tl.load(text + place - back",
    ),
    "looks for other tokens": ("tl.load(text + end - back, mask", "tl.load(text + end - back - 1, mask"),
    "reads one block a stripe": ("start += STRIPES * BLOCK", "start += end"),
    "stops the chain at the anchor": ("% (end - at)", "% (end - at + 1)"),
    "takes the anchor from the history": ("tl.where(place == end, anchor, told)", "told"),
    "follows the tree below the chain": ("& (depth <= LENGTH)", ""),
    "adds what the tree has": ("& (path == 0)", ""),
    "leaves a hole where the chain took a node": ("row - keep - passed\n", "row - keep\n"),
    "hangs moved nodes on their old row": ("filled + above - keep - passed_above)", "above)"),
    "forgets nodes taken before the parent": ("- keep - passed_above)", "- keep)"),
    "hangs the chain on the anchor": ("step == shared, last - 1", "step == shared, -1"),
    "keeps another node": ("keep: tl.constexpr = N - LENGTH", "keep: tl.constexpr = N - LENGTH + 1"),
    "leaves scores": ("    tl.store(scores + new_row - 1, score, mask=refilled)\n", ""),
    "leaves the chain's scores": ("tl.zeros([LENGTH_POWER], tl.float32), mask=added", "0.0, mask=added & (step < 0)"),
    "leaves depths": ("    tl.store(depths + new_row - 1, depth, mask=refilled)\n", ""),
    "is its own sibling": ("(column[None, :] > row[:, None])", "(column[None, :] >= row[:, None])"),
    "has the last child first": (
        "child = tl.min(tl.where(parent_of[None, :] == row[:, None], column[None, :], COLUMNS), axis=1)",
        "child = tl.max(tl.where(parent_of[None, :] == row[:, None], column[None, :], -1), axis=1)",
    ),
    "gives empty slots siblings": (" & (parent[:, None] >= 0)", ""),
    "does not see the anchor": ("while tl.max(above, 0) >= 0", "while tl.max(above, 0) > 0"),
    "does not see itself": ("seen = column[None, :] == row[:, None]", "seen = column[None, :] < 0 * row[:, None]"),
    "writes one line of the mask less": ("changed = (row > size)", "changed = (row > size + 1)"),
}  # fmt: skip
IN_RECORD: dict[str, Fault] = {
    "leaves the new anchor": ("(value <= count)", "(value < count)"),
    "writes what was not committed": ("((value == 0) | (value <= count)) & ", ""),
    "begins one place late": ("- count + value", "- count + value + 1"),
    "writes behind the row": (" & (place < width)", ""),
    "writes in front of the row": (" & (place >= 0)", ""),
    "writes another request's text": ("slot * pitch", "request * pitch"),
}
FEW = (
    "counts the tail itself", "is its own sibling", "adds what the tree has", "does not see the anchor",
    "hangs moved nodes on their old row", "writes behind the row",
)  # fmt: skip
IN_REFERENCE: dict[str, Fault] = {
    "takes the first occurrence": ("places[-1] + gram - 1", "places[0] + gram - 1"),
    "agrees in one token less": ("for back in range(gram):", "for back in range(gram - 1):"),
    "reads from the occurrence's last token": ("places[-1] + gram - 1", "places[-1] + gram - 2"),
    "begins with the shortest": ("range(MOST, LEAST - 1, -1)", "range(LEAST, MOST + 1)"),
    "counts a seventh token": ("range(MOST, LEAST", "range(MOST + 1, LEAST"),
    "wants three tokens": ("range(MOST, LEAST - 1, -1)", "range(MOST, LEAST, -1)"),
    "keeps another node": ("made = tree[: most - len(tokens)]", "made = tree[: most - len(tokens) + 1]"),
    "adds what the tree has": ("if (at, token) not in slot:", "if True:"),
    "hangs moved nodes on their old slot": ("node._replace(parent=key[0])", "node"),
    "does not fill up": ("if len(made) == most:", "if len(made) >= most - 1:"),
}


def planted(name: str, fault: Fault, folder: Path) -> ModuleType:
    """The room's file `name`, with the fault, as a module of its own."""
    source = (HERE / name).read_text()
    right, wrong = fault
    if right not in source:
        raise ValueError(f"{name} has no {right!r}")
    path = folder / name
    path.write_text(source.replace(right, wrong))
    spec = spec_from_file_location(f"planted_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def is_seen(name: str, fault: Fault, folder: Path) -> bool:
    """Whether the few cases find it; a kernel that fails has been found too."""
    module = planted(name, fault, folder)
    try:
        if name == "record.py":
            return any(cases.record_differences(seed, "cpu", module.launch) for seed in range(10))
        return any(found for _, found in cases.wrong_of("few", module.launch))
    except Exception as error:  # the interpreter's own, of any kind
        print(f"{name}: {type(error).__name__}")
        return True


def main(which: str) -> int:
    """Print what nobody sees."""
    faults = [("graft.py", *item) for item in IN_GRAFT.items()] + [("record.py", *item) for item in IN_RECORD.items()]
    faults = [fault for fault in faults if which == "all" or fault[1] in FEW]
    with TemporaryDirectory() as folder:
        unseen = [f"{name} {what}" for name, what, fault in faults if not is_seen(name, fault, Path(folder))]
    for line in unseen:
        print("UNSEEN", line)
    print(f"{len(faults)} faults, {len(unseen)} unseen")
    return bool(unseen)


if __name__ == "__main__":
    from specpilot_kernels._testing.words import word

    sys.exit(main(word(__doc__, ("few", "all"))))
