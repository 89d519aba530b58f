#!/usr/bin/env bash
# A logit bias of 2 on every 7th vocabulary id: task accuracy does not see it (paper, section 3.4), token forcing does.
set -euo pipefail
cd "${1:-$(mktemp -d)}"
faults=$(python -c 'from specpilot_cli.reporting.demo import FAULT; print(FAULT)')

specpilot stock init stock --engine miniengine
git -C stock worktree add --quiet --detach ../faulty
git -C faulty apply --index "$faults"
git -C faulty -c user.name=you -c user.email=you@example.invalid commit --quiet -m "A fault on purpose"

specpilot pair-run stock --noise --requests 8 -o noise.json
specpilot pair-run stock faulty --noise-from noise.json --requests 8 -o pair.json || true # whatever its speed
if specpilot force-tokens pair.json --scorer stock -o forced.json; then
    echo "the fault passed" >&2
    exit 70
fi
specpilot show forced.json | grep -w verdict
