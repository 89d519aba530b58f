#!/usr/bin/env bash
# An agent round without a key: recorded agents, real worktrees, real measurements. From stock and an empty memory, one
# agent writes draft trees, one tries four-bit weights, one drops the selector's pair scores.
set -euo pipefail
recording=$(cd "$(dirname "$0")" && pwd)/recording.jsonl
cd "${1:-$(mktemp -d)}"

specpilot stock init stock --engine miniengine
specpilot profile stock --requests 4 -o profile.json
specpilot ceiling profile.json -o ceiling.json
mkdir -p nothing-known

specpilot agent round ceiling.json --stock stock --memory-dir nothing-known --provider "replay:$recording" --dir round ||
    verdict=$? # a busy machine may leave it undecided (125)
specpilot agent status round
specpilot agent log round --agent direction/four-bits
case ${verdict:-0} in 0 | 125) ;; *) exit "$verdict" ;; esac

specpilot show round/round.json
[ "${verdict:-0}" = 125 ] || specpilot memory check --memory-dir round/memory # what was distilled gives its tree again
exit "${verdict:-0}"
