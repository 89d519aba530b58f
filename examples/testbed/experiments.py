"""Try variants of the drafters' recipe for the same time each, and keep what helps.

    python examples/testbed/experiments.py --target DIR --texts DIR... --prompts DIR --out trials.json
        --seconds 75 --until 520 "base:" "+muon:optimizer=muon,rate=2e-3" "+soft:softness=0.5"

A trial is NAME:CHANGE;CHANGE... (as `train.py --set` takes them). One whose name begins with + is made on top of the
best trial so far, others on top of the recipe; the best is the one with the highest tau over the four prompt sets.
`texts=NUMBER` is a change too: which of the folders of --texts to train on, or `all`. --out is rewritten after every
trial; trials that it has already are not run again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import torch  # noqa: E402
from profile_step import profiled  # noqa: E402
from prompts import Known  # noqa: E402
from recipe import ALGORITHMS, Recipe  # noqa: E402
from smoke import tiny_target  # noqa: E402
from texts import PROMPT_ROOM, Chat, benchmark_texts, load_texts, pairs_of, texts_of, write_texts  # noqa: E402
from train import BENCHMARK_ROOM, drafters_of, known_prompts  # noqa: E402
from training import Training, rows_of  # noqa: E402

from specpilot_cli.testbed.nn.acceptance import Acceptance, Texts, tau_of  # noqa: E402
from specpilot_cli.testbed.nn.dense import DenseModel  # noqa: E402
from specpilot_cli.testbed.nn.features import Features, features_of  # noqa: E402
from specpilot_cli.testbed.nn.files import load  # noqa: E402
from specpilot_cli.testbed.nn.generate import Generator  # noqa: E402

BETTER = 0.01
"""By so much tau has to grow for a trial to become the best."""
EVALUATION_S = 15.0
"""Assumed for a trial's start and evaluation, to know whether it still fits."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", nargs="*", metavar="NAME:CHANGES")
    parser.add_argument("--target", type=Path)
    parser.add_argument("--texts", type=Path, nargs="+", required=True, help="folders of texts-*.json")
    parser.add_argument("--prompts", type=Path, help="folder of held-out prompts (*.jsonl)")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=75.0, help="of training, a trial")
    parser.add_argument(
        "--until", type=float, default=520.0, help="seconds from now on: no trial begins that ends later"
    )
    parser.add_argument("--write", type=float, default=0.0, help="first write new text into the last folder, minutes")
    parser.add_argument("--drafter", choices=ALGORITHMS, default="dflash2")
    parser.add_argument("--mask-token", default="<empty_output>")
    parser.add_argument("--profile", action="store_true", help="first take one step of each drafter apart")
    parser.add_argument("--smoke", action="store_true", help="a random target and the smoke recipe")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    return parser.parse_args()


class Bench:
    """Everything that the trials share."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.begun = options, time.perf_counter()
        self.recipe = (Recipe().smoke() if options.smoke else Recipe()).changed(options.set)
        if options.smoke:
            options.target, options.mask_token = tiny_target(options.out.parent / "target"), "<mask>"
        kind = torch.bfloat16 if options.device != "cpu" else torch.float32
        target = load(options.target, options.device, kind)
        assert isinstance(target, DenseModel)
        self.target, self.chat = target, Chat.of(options.target)
        self.mask = self.chat.tokenizer.token_to_id(options.mask_token)
        self.report: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {"trials": {}}
        self.features: dict[str, Features] = {}

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.begun

    def say(self, what: str, value: Any) -> None:
        """Into the report and on stdout."""
        self.report[what] = value
        self.options.out.write_text(json.dumps(self.report, indent=1) + "\n")
        print(f"[{self.seconds:.0f} s] {what}: {json.dumps(value)}", flush=True)

    def write(self) -> None:
        """New text into the last folder, with its speed."""
        folder, begun = self.options.texts[-1], time.perf_counter()
        folder.mkdir(parents=True, exist_ok=True)
        slots = PROMPT_ROOM + max(self.recipe.new_tokens, self.recipe.message_tokens)
        generator = Generator(self.target, self.recipe.batch, slots)
        known = Known(known_prompts(self.options.prompts))
        write_texts(self.recipe, generator, self.chat, known, folder, self.options.write)
        if self.options.device == "cuda":
            del generator
            torch.cuda.empty_cache()
        self.say("writing_s", round(time.perf_counter() - begun, 1))

    def read(self) -> None:
        """Texts, held-out texts of each folder, and the answers to the benchmarks' prompts."""
        self.train: dict[str, Texts] = {}
        self.held: dict[str, Texts] = {}
        for number, folder in enumerate(self.options.texts):
            paths = sorted(folder.glob("texts-*.json"))
            if paths:
                self.train[str(number)], self.held[f"held-out {number}"] = load_texts(paths, self.recipe.held_out)
        if len(self.train) > 1:
            self.train["all"] = together(list(self.train.values()))
        self.sets: dict[str, Texts] = {}
        if self.options.prompts:
            generator = Generator(self.target, 64, BENCHMARK_ROOM + self.recipe.new_tokens)
            answered = benchmark_texts(
                self.options.prompts,
                lambda m: pairs_of(generator, self.chat, m, self.recipe.new_tokens, BENCHMARK_ROOM),
            )
            self.sets = {name: texts_of(pairs) for name, pairs in answered.items()}
        counts = {name: [len(t), int((t.lengths - t.first).sum())] for name, t in (self.train | self.sets).items()}
        self.say("texts and answer tokens", counts)

    def training(self, recipe: Recipe, names: list[str], which: str) -> Training:
        """With the shared features of the texts `which`."""
        drafters = drafters_of(recipe, self.target, self.mask, names)
        folder = Path(tempfile.mkdtemp(prefix="trial-"))
        made = Training(recipe, self.target, drafters, folder, self.options.seconds / 60)
        labels, every = made.labels, self.target_layers()
        key = f"{which} with {labels} labels"
        if key not in self.features:
            self.features.clear()  # room for one
            begun = time.perf_counter()
            self.features[key] = features_of(self.target, self.train[which], every, labels)
            synchronize(self.options.device)
            print(f"features of {key}: {time.perf_counter() - begun:.1f} s", flush=True)
        made.layers, made.features = every, self.features[key]
        return made

    def target_layers(self) -> tuple[int, ...]:
        """What any drafter reads."""
        made = drafters_of(replace(self.recipe, init="random"), self.target, self.mask, list(ALGORITHMS))
        return tuple(sorted({i for d in made.values() for i in d.config.target_layer_ids}))

    def taus(self, training: Training, sets: dict[str, Texts]) -> dict[str, float]:
        """Of the trial's drafter at its first block length; `four` pools the steps of the prompt sets."""
        name = self.options.drafter
        rows, drafter = rows_of(training.recipe, name)[0], training.drafters[name]
        found, steps, accepted = {}, 0, 0
        for label, texts in sets.items():
            with training.autocast():
                got = tau_of(drafter, self.target, texts.to(self.options.device), rows)
            found[label] = round(got.tau, 3)
            if label in self.sets:
                steps, accepted = steps + got.steps, accepted + got.accepted
        return {**found, "four": round(Acceptance(steps, accepted).tau, 3)} if steps else found

    def trial(self, name: str, changes: list[str]) -> dict[str, Any]:
        """Train for the time that each trial has; evaluated at its half and at its end, outside that time."""
        which = ([c.partition("=")[2] for c in changes if c.startswith("texts=")] or [next(iter(self.train))])[-1]
        recipe = self.recipe.changed([c for c in changes if not c.startswith("texts=")])
        torch.manual_seed(recipe.seed)
        training = self.training(recipe, [self.options.drafter], which)
        texts, half, losses, found = self.train[which], False, [], {}
        warm = training.ready(texts)
        synchronize(self.options.device)
        training.clock.started = time.perf_counter()
        while training.clock.progress < 1:
            last = training.robust_step(texts)
            training.clock.step += 1
            if training.clock.step % 50 == 0:
                losses.append(round(last[self.options.drafter].item(), 3))
            if not half and training.clock.progress >= 0.5:
                half, begun = True, time.perf_counter()
                found["half"] = self.taus(training, self.held)
                training.clock.started += time.perf_counter() - begun
        steps, seconds = training.clock.step, training.clock.seconds
        found["end"] = self.taus(training, self.held | self.sets)
        return {
            "changes": changes, "tau": found, "steps": steps, "ms_a_step": round(1e3 * seconds / steps, 1),
            "warm_up_s": round(warm, 1), "losses_every_50": losses, "gb": gigabytes(self.options.device),
        }  # fmt: skip

    def run(self) -> None:
        """All trials that fit."""
        trials = self.report["trials"]
        for text in self.options.trials:
            name, _, rest = text.partition(":")
            if name in trials:
                continue
            if self.seconds + self.options.seconds + EVALUATION_S > self.options.until:
                print(f"no time for {name}", flush=True)
                continue
            base = trials[self.report["best"]]["changes"] if name.startswith("+") and "best" in self.report else []
            try:
                trials[name] = self.trial(name, [*base, *[c for c in rest.split(";") if c]])
            except Exception as error:  # a variant that does not work must not end the others
                trials[name] = {"changes": rest, "error": f"{type(error).__name__}: {error}"[:300]}
                torch.cuda.empty_cache()
            self._judge(name)

    def _judge(self, name: str) -> None:
        trials, best = self.report["trials"], self.report.get("best")
        if "tau" in trials[name] and (best is None or score(trials[name]) > score(trials[best]) + BETTER):
            self.report["best"] = name
        self.options.out.write_text(json.dumps(self.report, indent=1) + "\n")
        shown = {k: v for k, v in trials[name].items() if k != "losses_every_50"}
        print(f"[{self.seconds:.0f} s] {name}: {json.dumps(shown)}; best: {self.report.get('best')}", flush=True)


def score(trial: dict[str, Any]) -> float:
    """What is to grow: tau over the prompt sets, or over held-out texts where there are none."""
    end: dict[str, float] = trial["tau"]["end"]
    return end["four"] if "four" in end else next(iter(end.values()))


def together(parts: list[Texts]) -> Texts:
    """One behind the other, padded to the widest."""
    width = max(part.ids.shape[1] for part in parts)
    padded = [torch.nn.functional.pad(part.ids, (0, width - part.ids.shape[1])) for part in parts]
    return Texts(torch.cat(padded), torch.cat([p.first for p in parts]), torch.cat([p.lengths for p in parts]))


def synchronize(device: str) -> None:
    """Wait for the GPU, where there is one."""
    if device == "cuda":
        torch.cuda.synchronize()


def gigabytes(device: str) -> float | None:
    """Most GPU memory that was held, features included."""
    return round(torch.cuda.max_memory_allocated() / 1e9, 1) if device == "cuda" else None


def main() -> int:
    """Text, profile, trials."""
    options = arguments()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    bench = Bench(options)
    if options.write:
        bench.write()
    bench.read()
    if options.profile:
        for name in ALGORITHMS:
            which = next(iter(bench.train))
            bench.say(f"profile {name}", profiled(bench.training(bench.recipe, [name], which), bench.train[which]))
    bench.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
