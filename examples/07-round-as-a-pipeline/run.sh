#!/usr/bin/env bash
# The same loop as plain commands, for a CI job that brings its own patch: no orchestrator, no model.
set -euo pipefail
patch=$(cd "$(dirname "$0")/../.." && pwd)/memory/miniengine/tree/delta.patch
requests=${REQUESTS:-28}
cd "${1:-$(mktemp -d)}"

specpilot stock init stock --engine miniengine
specpilot profile stock --requests 4 -o profile.json
specpilot ceiling profile.json -o - | specpilot show - # what to attack

git -C stock worktree add --quiet --detach ../candidate
git -C candidate apply --index "$patch" # here an agent, or a person, would have worked

specpilot pair-run stock --noise --requests "$requests" -o noise.json
for seed in 1 2; do
    specpilot pair-run stock candidate --split sealed --requests "$requests" --seed "$seed" \
        --vary speculative_tree_nodes --noise-from noise.json -o "final-$seed.json"
    specpilot force-tokens "final-$seed.json" --scorer stock -o "forced-$seed.json"
done
specpilot seal make final-1.json final-2.json forced-1.json forced-2.json noise.json --seen profile.json -o seal.json
specpilot seal verify seal.json

mkdir -p memory
specpilot memory add --from candidate --id my-tree --title "Draft trees" --kind tree --vary speculative_tree_nodes \
    --memory-dir memory --evidence seal.json --evidence final-1.json --evidence final-2.json --evidence forced-1.json \
    --evidence forced-2.json --evidence noise.json --evidence profile.json
specpilot memory check --memory-dir memory
