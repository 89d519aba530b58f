#!/usr/bin/env bash
# A memory entry on stock: does it reproduce, and is it faster? The paired run survives kill -9.
set -euo pipefail
cd "${1:-$(mktemp -d)}"

specpilot stock init stock --engine miniengine
specpilot memory apply tree --stock stock --worktree tree -o apply.json
specpilot pair-run stock --noise --requests 8 -o noise.json

specpilot pair-run stock tree --vary speculative_tree_nodes --noise-from noise.json --requests 8 -o pair.json &
until [ -e pair.json ] && [ "$(grep -c '"output_sha256"' pair.json)" -ge 4 ]; do sleep 0.2; done
kill -9 $! && wait $! || true
specpilot show pair.json | grep -w complete

specpilot pair-run stock tree --vary speculative_tree_nodes --noise-from noise.json --requests 8 \
    --resume pair.json -o pair.json || verdict=$? # eight requests may leave it undecided (125) or below the bar (1)
case ${verdict:-0} in 0 | 1 | 125) ;; *) exit "$verdict" ;; esac
specpilot show pair.json
