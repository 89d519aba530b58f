"""Training text: the Python sources of the standard library, their split and their tokenizer."""

from __future__ import annotations

import hashlib
import platform
import sysconfig
import tarfile
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"
SKIPPED_FOLDERS = {"site-packages", "dist-packages", "__pycache__"}
SKIPPED_PREFIX = "_sysconfigdata"  # generated at build time, names the build machine's folders


@dataclass(frozen=True)
class Corpus:
    """Sources by relative path, one digest over all of them, and which files are held out of training."""

    files: dict[str, str]
    digest: str
    python: str

    def part(self, held_out: bool) -> list[tuple[str, str]]:
        """(path, text) of the held-out tenth, or of the rest, in path order."""
        return [(path, text) for path, text in self.files.items() if is_held_out(text) == held_out]


def is_held_out(text: str) -> bool:
    """One file in ten, by the digest of its text."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) % 10 == 0


def _wanted(path: Path) -> bool:
    return path.suffix == ".py" and not SKIPPED_FOLDERS & set(path.parts) and not path.name.startswith(SKIPPED_PREFIX)


def _build(sources: dict[str, bytes], python: str) -> Corpus:
    whole, files = hashlib.sha256(), {}
    for path in sorted(sources):
        try:
            text = sources[path].decode("utf-8")
        except UnicodeDecodeError:
            continue  # a handful of encoding tests
        files[path] = text
        whole.update(f"{path} {hashlib.sha256(sources[path]).hexdigest()}\n".encode())
    return Corpus(files, whole.hexdigest(), python)


def from_interpreter() -> Corpus:
    """The running interpreter's standard library."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = {p.relative_to(root): p for p in root.rglob("*.py") if _wanted(p.relative_to(root))}
    return _build({str(name): path.read_bytes() for name, path in found.items()}, platform.python_version())


def from_archive(path: Path) -> Corpus:
    """The same from an archive that `pack` wrote on another machine."""
    with tarfile.open(path) as archive:
        members = [(m.name, archive.extractfile(m)) for m in archive.getmembers()]
        sources = {name: file.read() for name, file in members if file is not None}
    return _build({n: b for n, b in sources.items() if n != "VERSION"}, sources["VERSION"].decode())


def train_tokenizer(corpus: Corpus, entries: int) -> Tokenizer:
    """Byte-level BPE over the training files; id 0 ends a file."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=entries, special_tokens=[END], initial_alphabet=sorted(alphabet), show_progress=False
    )
    tokenizer.train_from_iterator((text for _, text in corpus.part(held_out=False)), trainer)
    return tokenizer
