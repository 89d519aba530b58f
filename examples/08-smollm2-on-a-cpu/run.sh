#!/usr/bin/env bash
# The real SGLang 0.5.20 on a CPU with a real model at BF16: stock against itself passes token forcing although one or
# two tokens in a hundred are not the FP32 head's argmax; a logit bias of 2 on every 7th id does not pass.
# $1: checkpoint folder of SmolLM2-135M-Instruct (examples/testbed/convert.py writes one), $2: the folder to work in.
# SPECPILOT_SGLANG_PYTHON: an interpreter with SGLang's dependencies (README.md beside this).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
model=$(cd "$1" && pwd)
cd "${2:-$(mktemp -d)}"

export SPECPILOT_SGLANG_PATH=$PWD/stubs
export OMP_NUM_THREADS=1 # or the engine's own threads compete for two cores, which pair-run takes for a busy machine
python "$here/prepare.py" "$model" # stubs/, requests.jsonl, a deployment

specpilot stock init stock --engine sglang-0.5.20 ${WHEEL:+--wheel "$WHEEL"}
[ -d faulty ] || git -C stock worktree add --quiet --detach ../faulty
git -C faulty apply --index "$here/fault.patch"
git -C faulty -c user.name=you -c user.email=you@example.invalid commit --quiet -m "A fault on purpose"

design=(-d smollm2__none__cpu__r8.toml --order AB --starts 1 -c 8)
# stock against itself first; a machine that is busy meanwhile (INFRA) cannot give the noise that the second run asks for
for attempt in 1 2 3; do
    specpilot pair-run stock --noise "${design[@]}" -o noise.json && break
done
specpilot force-tokens noise.json --scorer stock -o honest.json
specpilot pair-run stock faulty --noise-from noise.json "${design[@]}" -o pair.json || true # whatever its speed
code=0
specpilot force-tokens pair.json --scorer stock -o forced.json || code=$?
[ "$code" = 1 ] || { echo "the fault was not rejected (exit $code)" >&2; exit 70; }
for found in honest.json forced.json; do
    python - "$found" <<'PY'
import json, sys
body = json.load(open(sys.argv[1]))["body"]
rates = {arm: f"{side['mismatches']} of {side['tokens']}" for arm, side in body["sides"].items()}
print(sys.argv[1], body["verdict"], rates)
PY
done
