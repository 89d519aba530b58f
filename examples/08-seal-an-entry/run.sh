#!/usr/bin/env bash
# A memory entry through the whole gate: noise on develop requests, two paired runs on sealed ones, the forcing of each,
# the seal. Every step is skipped where its artifact is complete and resumed where it is there, so the same command goes
# on after a kill. Without settings: the embedded engine's draft trees, on a CPU. On a GPU, for example:
#
#   ENGINE=sglang-0.5.20 ENTRY=w12-linear DEPLOYMENT=dense8b__ar__h200-sxm__r32 VARY=quantization \
#     FLAGS='--quantization w12' SIZES='1 32' BATCHES=8 STARTS=4 bash examples/08-seal-an-entry/run.sh OUT
#
#   ENGINE, ENTRY    the entry          DEPLOYMENT       where it is measured
#   VARY             configuration keys that may differ  FLAGS  engine flags of the candidate
#   SIZES            batch sizes        BATCHES, REQUESTS  of each size and benchmark; of the set (all)
#   STARTS           fresh starts of both servers (8)     SCORER  worktree that scores, if not the stock one made here
#   ORDER            of stock and candidate (ABBA)        UNTIL   the artifact to stop after, such as pair-1.json (all)
set -uo pipefail
cd "${1:-$(mktemp -d)}" || exit
engine=${ENGINE:-miniengine} entry=${ENTRY:-tree} deployment=${DEPLOYMENT:-miniengine-hybrid__dflash2__cpu__r1}
vary=${VARY-speculative_tree_nodes}

state() { # FILE: absent, partial, spoiled (INFRA: says nothing, is measured again) or complete
    [ -f "$1" ] || { echo absent && return; }
    python3 -c 'import json, sys; a = json.load(open(sys.argv[1]))
print("partial" if not a["complete"] else "spoiled" if a["body"].get("verdict") == "INFRA" else "complete")' "$1"
}
step() { # FILE COMMAND...: what the verdict says is the seal's business, unless the machine failed
    local file=$1 code=0
    shift
    case $(state "$file") in
    complete) ;;
    partial) specpilot "$@" --resume "$file" || code=$? ;;
    *) specpilot "$@" -o "$file" || code=$? ;;
    esac
    [ "$(state "$file")" = complete ] || exit $((code ? code : 70))
    [ "$file" != "${UNTIL:-}" ] || exit 0
}

[ -d stock ] || specpilot stock init stock --engine "$engine" || exit
[ -d candidate ] || specpilot memory apply "$entry" --stock stock --worktree candidate -o apply.json || exit

design=(-d "$deployment") differ=()
for size in ${SIZES:-1}; do design+=(-c "$size"); done
[ -z "${BATCHES:-}" ] || design+=(--batches "$BATCHES")
[ -z "${STARTS:-}" ] || design+=(--starts "$STARTS")
[ -z "${ORDER:-}" ] || design+=(--order "$ORDER")
[ -z "${REQUESTS:-}" ] || design+=(--requests "$REQUESTS")
for key in $vary; do differ+=(--vary "$key"); done
for word in ${FLAGS:-}; do differ+=("--candidate-flag=$word"); done

step noise.json pair-run stock --noise "${design[@]}"
for run in 1 2; do
    step pair-$run.json pair-run stock candidate "${design[@]}" ${differ[@]+"${differ[@]}"} --split sealed --seed $run \
        --noise-from noise.json
    step forced-$run.json force-tokens pair-$run.json --scorer "${SCORER:-stock}"
done
specpilot seal make pair-1.json pair-2.json forced-1.json forced-2.json noise.json -o seal.json || exit
specpilot seal verify seal.json
