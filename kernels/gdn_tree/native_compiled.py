"""What the `cuda` variant takes of a multiprocessor, by the assembler: `python native_compiled.py [90a 120a]`."""

import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1] / "_testing")
    from mount import mount

    mount()

from specpilot_kernels.gdn_tree import native

LINES = re.compile(
    r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores.*?Used (\d+) registers",
    re.DOTALL,
)
NAME = re.compile(r"(walk|solve_tree|solve_blocks|read_tree)I((?:NS_5ShapeI)?(?:Li\d+E)+)")


def name_of(kernel: str, numbers: list[int]) -> str:
    """Of a kernel, for people, from its template's numbers: rows first, but for the commit."""
    if kernel == "walk":
        return "commit"
    rows, _, *block = numbers
    if kernel == "solve_tree":
        return f"verify, {rows} rows"
    shape = block[0] * 32 if kernel == "solve_blocks" else block[0] * 1000 + block[1]
    return f"{native.name_of(shape)}, {rows} rows"


def resources(arch: str, width: int = 128, more: bool = False) -> dict[str, dict[str, int]]:
    """Registers a thread, bytes of stack and bytes spilled of every kernel. Raises `CalledProcessError`."""
    with TemporaryDirectory() as folder:
        words = [*native.command(arch, width, more=more), "-Xptxas", "-v", "-o", str(Path(folder) / "gdn_tree.so")]
        said = subprocess.run(words, check=True, capture_output=True, text=True).stderr
    found = {}
    for mangled, stack, spilled, registers in LINES.findall(said):
        matched = NAME.search(mangled)
        assert matched, mangled
        name = name_of(matched[1], [int(number) for number in re.findall(r"Li(\d+)E", matched[2])])
        found[name] = {"registers": int(registers), "stack_bytes": int(stack), "spill_bytes": int(spilled)}
    return found


def main() -> None:
    for arch in sys.argv[1:] or ["90a"]:
        for name, takes in resources(arch, more=True).items():
            print(f"sm_{arch} {name}: {takes}")


if __name__ == "__main__":
    main()
