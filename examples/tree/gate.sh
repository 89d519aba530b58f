#!/usr/bin/env bash
# The gate of ../08-seal-an-entry where minutes count: both paired runs first, then both forcings side by side (nothing is
# timed there), all within a deadline. What a deadline cut off is resumed by the same command, and skipped where complete.
#
#   STOCK=wt/stock CANDIDATE=wt/tree DEPLOYMENT=FILE.toml FLAGS="--speculative-tree-nodes 32" SIZES="1 8" bash gate.sh OUT
#
#   STOCK, CANDIDATE  worktrees           DEPLOYMENT  where it is measured      FLAGS     engine flags of the candidate
#   SIZES   batch sizes (1)               BATCHES     of each size (all)        REQUESTS  of the set (those that the
#                                                                                         largest size's batches take)
#   STARTS  fresh starts of both (2)      ORDER       of both (AB)              VARY      configuration keys that may differ
#   WITHIN  seconds for all of it (3600); no step starts in the last LEAST (45) of them
#   BESIDE  a command that runs while the outputs are forced                    SPECPILOT the command (specpilot)
#
# The engine is SGLang's HTTP server, which imports jsonschema, soundfile (cffi) and python_multipart; where they are
# missing, mode = "offline" in DEPLOYMENT. Nothing else may be on the GPU, a program that was just killed included.
set -uo pipefail
out=${1:?a folder for the artifacts}
end=$((SECONDS + ${WITHIN:-3600})) run=(${SPECPILOT:-specpilot})
stock=$(realpath "${STOCK:?}") candidate=$(realpath "${CANDIDATE:?}") deployment=$(realpath "${DEPLOYMENT:?}")
[ -d "$stock" ] && [ -d "$candidate" ] && [ -f "$deployment" ] || exit 2
vary=${VARY-speculative_num_draft_tokens speculative_tree_beam speculative_tree_candidates speculative_tree_max_requests speculative_tree_mode speculative_tree_nodes}
mkdir -p "$out" && cd "$out" || exit

state() { # FILE: absent, partial, spoiled (INFRA: says nothing, is measured again) or complete
    [ -f "$1" ] || { echo absent && return; }
    python3 -c 'import json, sys; a = json.load(open(sys.argv[1]))
print("partial" if not a["complete"] else "spoiled" if a["body"].get("verdict") == "INFRA" else "complete")' "$1"
}

step() { # FILE COMMAND...: 0 where the artifact is complete in the end, whatever its verdict
    local file=$1 left=$((end - SECONDS)) begun=$SECONDS before
    shift
    before=$(state "$file")
    [ "$before" != complete ] || return 0
    [ "$left" -ge "${LEAST:-45}" ] || { echo "late: $file is left out" && return 1; }
    case $before in
    partial) timeout -k 15 "$left" "${run[@]}" "$@" --resume "$file" ;;
    *) timeout -k 15 "$left" "${run[@]}" "$@" -o "$file" ;;
    esac
    before=$(state "$file")
    echo "$file: $before after $((SECONDS - begun)) s"
    [ "$before" != spoiled ] || [ -n "${again:-}" ] || again=yes step "$file" "$@" # a busy machine may be quiet now
    [ "$(state "$file")" = complete ]
}

design=(-d "$deployment" --order "${ORDER:-AB}" --starts "${STARTS:-2}") differ=() largest=1
for size in ${SIZES:-1}; do
    design+=(-c "$size")
    [ "$size" -le "$largest" ] || largest=$size
done
# a request that no batch takes has no output, and what has no output cannot be forced
if [ -n "${BATCHES:-}" ] && [ "${REQUESTS:-0}" -gt $((BATCHES * largest)) ]; then
    echo "$BATCHES batches of $largest do not take $REQUESTS requests" >&2
    exit 2
fi
[ -z "${BATCHES:-}" ] || design+=(--batches "$BATCHES" --requests "${REQUESTS:-$((BATCHES * largest))}")
[ -n "${BATCHES:-}" ] || [ -z "${REQUESTS:-}" ] || design+=(--requests "$REQUESTS")
for key in $vary; do differ+=(--vary "$key"); done
for word in ${FLAGS:-}; do differ+=("--candidate-flag=$word"); done

step noise.json pair-run "$stock" --noise "${design[@]}" || exit
for n in 1 2; do
    step pair-$n.json pair-run "$stock" "$candidate" "${design[@]}" "${differ[@]}" --split sealed --seed $n --noise-from noise.json ||
        break
done
[ -z "${BESIDE:-}" ] || [ "$SECONDS" -ge "$end" ] || timeout -k 15 $((end - SECONDS)) bash -c "$BESIDE" &
for n in 1 2; do
    [ "$(state pair-$n.json)" != complete ] || step forced-$n.json force-tokens pair-$n.json --scorer "$stock" &
done
wait
"${run[@]}" seal make pair-1.json pair-2.json forced-1.json forced-2.json noise.json -o seal.json && "${run[@]}" seal verify seal.json
