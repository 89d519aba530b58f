#!/usr/bin/env bash
# The entries tree-ngram (with it tree-core) and tree-hybrid on the stand-ins of ../testbed/whole.sh: tables, gates, traffic, kernels, faults.
#
#   export STATE=/tmp/tb OUT=/tmp/tb/out           # as that script had them, and BIG (default STATE)
#   bash examples/tree/whole.sh prepare            # stock and both worktrees, requests, bytecode: about two minutes
#   bash examples/tree/whole.sh 0 1                # the GPUs; with one, one chain after the other
#   bash examples/tree/whole.sh forced             # only texts against the cores, where there is no GPU
#
# The first GPU needs $STATE/{smollm2,drafters,dense8b,prompts}, the second $STATE/{held-ids.json,core/core} and $BIG/hyb27b.
# `python3` finds SGLang 0.5.20 with what its HTTP server imports, and SpecPilot's dependencies. Jobs run in the order of
# their worth, as in that script: a limit in seconds, a log in $OUT/NAME.log, a line in $OUT/times.txt; one that fails stops
# nothing but what needs it, one that ended well is not run again.
#
#   WAIT   seconds to wait for the testbed's jobs on the same GPU, where its script still runs (0)
#   UNTIL  seconds after the start from which nothing new begins        GATE  seconds for each gate, forcing included (900)
#   ONLY   names of jobs, behind prepare: the others are left out ("tree-deployments tree-gate-dflash2")
#   SIZES BATCHES REQUESTS STARTS  of the 8B gates, as in gate.sh       IDLE  seconds that a gate waits for an empty GPU (60)
#   SPECPILOT_SGLANG_PATH, SPECPILOT_SGLANG_CACHE  of the gates' servers (PYTHONPATH as it is, ~/.cache/sglang)
set -uo pipefail
state=$(realpath -m "${STATE:-/tmp/tb}") out=$(realpath -m "${OUT:?where results go}") here=$(cd "$(dirname "$0")" && pwd)
big=${BIG:-$state} wt=$state/wt held=$state/held-ids.json bed=$here/../testbed
export SPECPILOT_SGLANG_PATH=${SPECPILOT_SGLANG_PATH-${PYTHONPATH:-}} SPECPILOT_SGLANG_CACHE=${SPECPILOT_SGLANG_CACHE-$HOME/.cache/sglang}
export SPECPILOT_CACHE=${SPECPILOT_CACHE:-$state/cache} SPECPILOT="python3 -m specpilot_cli"
export PYTHONPATH=$here/../..${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=true
mkdir -p "$state/done" "$state/some" "$wt" "$out" ${SPECPILOT_SGLANG_CACHE:+"$SPECPILOT_SGLANG_CACHE"}
nodes="--speculative-tree-nodes 32 --speculative-tree-ngram 7 --speculative-tree-max-requests 0"
vary="speculative_num_draft_tokens $(echo speculative_tree_{beam,candidates,max_requests,mode,ngram,nodes})"
entries_core="tree-ngram" entries_hybrid="tree-hybrid tree-ngram" # without a chain's flag a tree is tree-core's
entries_packed="$entries_core w12-linear" entries_hybrid_packed="$entries_hybrid w12-linear"
faults_hybrid="sibling stale" # of faults.py; the dense tree has the first

note() { echo "$(date +%T) $*" >>"$out/times.txt"; }
wanted() { # NAMES...: whether ONLY leaves one of these in
  local name
  for name in "$@"; do case " ${ONLY:-$name} " in *" $name "*) return 0 ;; esac done
  return 1
}
job() { # NAME SECONDS COMMAND...
  local name=$1 limit=$2 code=0 begun=$SECONDS
  [ ! -f "$state/done/$name" ] || [ "$(cat "$state/done/$name")" != 0 ] || return 0
  wanted "$name" || return
  [ "$SECONDS" -lt "${UNTIL:-1000000}" ] || { note "$name: left out, $SECONDS s after the start" && return 1; }
  rm -f "$state/done/$name"
  # between the two signals a program ends the engines that it started, and is waited for
  timeout -k 20 "$limit" bash -c 'trap "exit 143" TERM; "$@"' bash "${@:3}" >"$out/$name.log" 2>&1 || code=$?
  note "$name: rc $code, $((SECONDS - begun)) s"
  echo "$code" >"$state/done/.$name" && mv "$state/done/.$name" "$state/done/$name"
  return "$code"
}
await() { # NAME SECONDS: until the job has ended, well or not
  for ((left = $2; left > 0; left--)); do [ ! -f "$state/done/$1" ] && sleep 1 || return 0; done
}
has() { # NAME PATHS...: whether the testbed left all of it
  for path in "${@:2}"; do [ -e "$path" ] || { note "$1: left out, no $path" && return 1; }; done
}
importable() { # what SGLang's HTTP server ends without, a minute after its start, and what the gate watches the GPU with
  local missing="" name
  for name in jsonschema soundfile cffi pycparser python_multipart; do
    PYTHONPATH=$SPECPILOT_SGLANG_PATH "${SPECPILOT_SGLANG_PYTHON:-python3}" -c "import $name" 2>/dev/null || missing+=" $name"
  done
  python3 -c "import pynvml" 2>/dev/null || missing+=" pynvml (nvidia-ml-py)"
  [ -z "$missing" ] || { echo "The gates cannot run: no$missing." >&2 && return 4; }
}
idle() { # NAME: whether this GPU has no process, in the end; one that was just killed takes a while to go
  said=$(python3 -c 'import sys, time
from specpilot_cli.controller.gpu import NvmlReader
reader, until = NvmlReader([sys.argv[1]]), time.monotonic() + float(sys.argv[2])
while there := reader.read()[0].processes:
    time.sleep(1) if time.monotonic() < until else sys.exit(f"GPU {sys.argv[1]} has processes {sorted(there)}")' \
    "$CUDA_VISIBLE_DEVICES" "${IDLE:-60}" 2>&1) || { note "$1: not begun, ${said##*$'\n'}" && return 1; }
}
engines() { # NAME COMMAND...: fails, too, where an engine did not start or was cut off
  "${@:2}" && ! grep -qE "DID NOT START|ended, or said nothing|ended early|late, not run" "$OUT/$1.log"
}
judge() { # FOLDER CORE PROMPTS: every comparison of forced_texts.py
  rm -rf "$1/forced" && python3 "$HERE/forced_texts.py" --texts "$1/texts.json" --target "$2" --prompts "$3" --out "$1/forced" || return
  for file in "$1"/forced/*-over-*.json; do
    python3 "$HERE/../testbed/forced.py" --target "$2" --prompts "$1/forced/prompts.json" --texts "$file" --out "$1/forced-${file##*/}" || return
  done
}
judge_fault() { # FOLDER CORE PROMPTS FAULT HONEST: fails, too, where the fault is not LOSSY
  python3 "$HERE/faults.py" judge "$4" --texts "$1/texts.json" --honest "$5/texts.json" --target "$2" --prompts "$3" --out "$1/forced"
}
faulty() { # NAME FAULT TREE COMMAND...: texts of a copy of the tree with a fault in it
  python3 "$HERE/faults.py" plant "$2" --tree "$3" --into "$3-$2" || return
  nice python3 -m compileall -q "$3-$2/sglang" # where the other bytecode is; engines write none
  rm -rf "$OUT/$1" && engines "$1" "${@:4}" --patched "$3-$2" --out "$OUT/$1"
}
export -f engines judge judge_fault faulty && export OUT=$out HERE=$here

trees() {
  job tree-stock 60 python3 "$here/stock_here.py" "$wt/stock" || return
  for name in core hybrid packed hybrid_packed; do
    local entries=entries_$name
    job "tree-$name" 60 $SPECPILOT memory apply ${!entries} --stock "$wt/stock" --worktree "$wt/$name/tree" -o "$out/apply-$name.json" || return
  done
}
requests8b() { # 24 prompts, six of a set, for the tables; framings of all of them for the gate
  for file in "$state"/prompts/*.jsonl; do head -6 "$file" >"$state/some/${file##*/}"; done
  job tree-requests 60 python3 "$here/request_sets.py" framed gsm8k humaneval mbpp mtbench --tokenizer "$state/smollm2" \
    --local "$state/prompts" -o "$out/four-sets.jsonl"
}
requests27b() { job tree-held 60 python3 "$here/request_sets.py" ids "$held" --name held-sources --new-tokens 128 -o "$out/held-sources.jsonl"; }
deployments() { # NAME FOLDER ARGUMENTS...
  job "$1" 60 python3 "$bed/deployments.py" --target "$2/target" --drafters "$2" --gpu h200-sxm --out "$state/deployments" "${@:3}"
}
gate() { # NAME TREE DEPLOYMENT SETTINGS...: of gate.sh, whose deadline comes before the job's, so that it ends its servers
  [ "$(cat "$state/done/$1" 2>/dev/null)" != 0 ] || return 0
  wanted "$1" && idle "$1" || return
  job "$1" $((${GATE:-900} + 60)) env STOCK="$wt/stock" CANDIDATE="$2" DEPLOYMENT="$state/deployments/$3" VARY="$vary" ORDER=AB WITHIN="${GATE:-900}" \
    "${@:4}" bash "$here/gate.sh" "$out/$1"
}
forced() { # NAME COMMAND CORE PROMPTS MORE...: what texts there are, again where there are more of them now
  local texts=$out/$1/texts.json
  [ -f "$texts" ] || return 0
  [ ! "$texts" -nt "$state/done/$1-forced" ] || rm -f "$state/done/$1-forced"
  job "$1-forced" 600 "$2" "$out/$1" "${@:3}"
}
forced8b() {
  forced tree-8b judge "$state/smollm2" "$state/prompts"
  forced tree-8b-sibling judge_fault "$state/smollm2" "$state/prompts" sibling "$out/tree-8b"
}
forced27b() {
  local fault
  forced tree-27b judge "$state/core/core" "$held"
  for fault in $faults_hybrid; do forced "tree-27b-$fault" judge_fault "$state/core/core" "$held" "$fault" "$out/tree-27b"; done
}

engine8b=(python3 "$here/h200.py" --entries $entries_core --work "$wt/core" --stock "$wt/stock" --target "$state/dense8b/target"
  --drafters "$state/dense8b" --prompts "$state/some" --requests 24 --new-tokens 128 --start-s 230 --limit-s 60
  --set mem_fraction_static=0.9 max_total_tokens=16384)
engines8b() { # NAME SYSTEMS AND MORE...; TREE: another worktree
  local entries=entries_${TREE:-core}
  job "$1" 420 engines "$1" "${engine8b[@]}" --entries ${!entries} --work "$wt/${TREE:-core}" --out "$out/tree-8b" --widths 1 4 8 16 24 \
    $([ ! -f "$out/tree-8b/tree.json" ] || echo --go-on) --systems "${@:2}"
}
fault8b() { # untimed, in the batch of 24 whose texts are the table's `together`
  job tree-8b-sibling 320 faulty tree-8b-sibling sibling "$wt/core/tree" "${engine8b[@]}" --widths 24 --systems dflash2@8+32n7
}
lattices() { # NAME ROWS: on the same prompts, 20 s of the GPU
  job "tree-lattices-$1" 45 python3 "$bed/lattices.py" --target "$state/smollm2" --drafter "$state/drafters/$1" --prompts "$state/some" \
    --out "$state/lattices-some/$1" --rows "$2" --new-tokens 128
}
replay() { # NAME
  OMP_NUM_THREADS=4 job "tree-replay-$1" 150 nice $SPECPILOT replay "$state/lattices-some/$1" -b chain,best-first,ddtree,beam,ngram,suffix -n 32,48,63 \
    -o "$out/tree-8b-replay-$1.json"
}
compared() { # NAME: the tables are its log; rc 1 says that a tau is not the replay's
  local given=() name
  for name in dflash2 dspark; do [ ! -f "$out/tree-8b-replay-$name.json" ] || given+=("$name=$out/tree-8b-replay-$name.json"); done
  job "$1" 60 python3 "$here/compare.py" "$out/tree-8b/tree.json" ${given[@]+"${given[@]}"}
}
gate8b() { # DRAFTER
  gate "tree-gate-$1" "$wt/core/tree" "standin-dense8b__$1__h200-sxm__r24.toml" FLAGS="$nodes" SIZES="${SIZES:-1 4 8 16 24}" \
    BATCHES="${BATCHES:-12}" REQUESTS="${REQUESTS:-192}" STARTS="${STARTS:-2}"
}
dense8b() {
  await dense8b "${WAIT:-0}"
  has tree-8b "$state"/{smollm2,drafters,prompts,dense8b/target} || return
  requests8b
  lattices dflash2 8 &
  local one=$!
  lattices dspark 7
  wait "$one" # nothing else is on the GPU while engines are timed
  { replay dflash2; replay dspark; } &
  engines8b tree-8b dflash2@8 dflash2@8+32n7 dspark@7 dspark@7+32n7 dflash2@8+32d --profile dflash2@8 dflash2@8+32n7
  wait
  compared tree-8b-compare
  job tree-8b-profiled 60 python3 "$here/profiled.py" "$out/tree-8b/tree.json"
  deployments tree-deployments "$state/dense8b" --model standin-dense8b --requests "$out/four-sets.jsonl" --widths 24 --max-total-tokens 20480
  gate8b dflash2
  job tree-robust 300 python3 "$here/robust.py" --out "$out/tree-robust" --entries $entries_core --work "$wt/core" --stock "$wt/stock" --target "$state/smollm2" \
    --drafters "$state/drafters" --prompts "$state/prompts" --system dflash2@8+32n7 --limit-s 260
  gate8b dspark
  TREE=packed engines8b tree-8b-w12 ar ar+w12 dflash2@8+w12 dflash2@8+32n7+w12 dspark@7+32n7+w12
  engines8b tree-8b-more dflash2@8+32 dspark@7+32 dflash2@8+32b 'dflash2@8+32n7~8' dflash2@8+63
  compared tree-8b-more-compare
  fault8b
  forced8b
}

serving27b() { # REQUESTS: the command, with pools for so many; a chain's hold 151 MB a request and draft token
  engine27b=(python3 "$here/hybrid.py" --entries $entries_hybrid --work "$wt/hybrid" --stock "$wt/stock" --target "$big/hyb27b/target"
    --drafters "$big/hyb27b" --prompts "$held" --devices "$CUDA_VISIBLE_DEVICES" --new-tokens 128 --start-s 230 --limit-s 90 --last-s 900
    --set max_running_requests="$1" cuda_graph_max_bs_decode="$1" mem_fraction_static=0.94 max_total_tokens=$(($1 * 640)))
}
engines27b() { # NAME SECONDS WIDTHS REQUESTS GROUPS...; TREE: another worktree
  local entries=entries_${TREE:-hybrid}
  serving27b "$4"
  job "$1" "$2" engines "$1" "${engine27b[@]}" --entries ${!entries} --work "$wt/${TREE:-hybrid}" --out "$out/tree-27b" --widths $3 --systems "${@:5}"
}
faults27b() { # untimed, one after the other
  local fault
  serving27b 8
  for fault in $faults_hybrid; do
    job "tree-27b-$fault" 350 faulty "tree-27b-$fault" "$fault" "$wt/hybrid/tree" "${engine27b[@]}" --widths 8 --systems dflash2@8+32n7/cuda
  done
}
gate27b() { # one request at a time; the deployment's servers have 54 GB each, and share the GPU
  deployments tree-27b-deployments "$big/hyb27b" --model standin-hyb27b --hybrid --requests "$out/held-sources.jsonl" --widths 1 --new-tokens 128 \
    --max-total-tokens 5120 && sed -i 's/"0\.85"/"0.94"/' "$state"/deployments/standin-hyb27b__*.toml
  gate tree-gate-27b "$wt/hybrid/tree" standin-hyb27b__dflash2__h200-sxm__r1.toml SIZES=1 BATCHES=24 REQUESTS= STARTS="${STARTS:-2}" \
    FLAGS="$nodes @env:SGLANG_GDN_TREE=cuda @env:SGLANG_GDN_COMMIT=cuda" VARY="specpilot_launch.sglang_settings $vary"
}
hybrid27b() {
  await hyb27b-few "${WAIT:-0}"
  has tree-27b "$held" "$big/hyb27b/target" || return
  requests27b
  engines27b tree-27b-dflash2 320 "1 4 8" 8 dflash2@8,dflash2@8+32n7/cuda
  engines27b tree-27b-dspark 320 "1 4 8" 8 dspark@7,dspark@7+32n7/cuda
  engines27b tree-27b-ddtree 360 "1 4 8 24" 24 dflash2@8+32d/cuda,dflash2@8+32/cuda
  TREE=hybrid_packed engines27b tree-27b-w12 420 "1 4 8" 8 dflash2@8+32n7+w12/cuda,ar+w12 ar
  engines27b tree-27b-wide 600 "16 24" 24 dflash2@8+32n7/cuda,dspark@7+32n7/cuda dflash2@8 dspark@7
  gate27b
  faults27b
}
kernels() { # nothing else on the GPU
  wanted tree-gdn-commit tree-gdn-verify && idle tree-gdn || return
  job tree-gdn-commit 90 python3 "$here/../../kernels/gdn_tree/bench_commit.py" --out "$out/gdn-commit-forms.json"
  job tree-gdn-verify 120 python3 "$here/../../kernels/gdn_tree/bench_native.py" --few --repeats 20 --sizes 1x32,8x32,24x32 --out "$out/gdn-native.json"
}

case ${1:-} in
prepare | [0-9]*) importable && trees || exit ;;&
prepare)
  [ ! -d "$state/prompts" ] || requests8b
  [ ! -f "$held" ] || requests27b
  for tree in "$wt/stock" "$wt"/{core,hybrid,packed,hybrid_packed}/tree; do # bytecode; engines write none, so that each would compile it again
    PYTHONPATH=$tree:$PYTHONPATH PYTHONPYCACHEPREFIX=$state/pyc job "tree-bytecode-$(basename "${tree%/tree}")" 150 env -u PYTHONDONTWRITEBYTECODE \
      python3 -c "import sglang.launch_server, sglang.srt.managers.scheduler, sglang.srt.models.registry, sglang.srt.entrypoints.http_server"
  done
  # the recurrent layers' CUDA C++, into the cache that engines use; needs a compiler and to see a GPU
  PYTHONPATH=$wt/hybrid/tree:$PYTHONPATH PYTHONDONTWRITEBYTECODE=1 job tree-gdn-built 200 python3 -c \
    "from sglang.srt.layers.attention.linear.gdn_commit.native import module_of; print(module_of(128))"
  PYTHONPATH=$wt/packed/tree:$PYTHONPATH PYTHONDONTWRITEBYTECODE=1 job tree-w12-built 300 python3 -c \
    "import torch; from sglang.srt.layers.quantization.w12 import ops; print(ops.make_ready(torch.cuda.current_device()))"
  ;;
[0-9]*)
  [ ! -d "$state/pyc" ] || export PYTHONPYCACHEPREFIX=$state/pyc
  [ $# -gt 1 ] || CUDA_VISIBLE_DEVICES=$1 dense8b
  [ $# -le 1 ] || CUDA_VISIBLE_DEVICES=$1 dense8b &
  export CUDA_VISIBLE_DEVICES=${2:-$1}
  hybrid27b
  kernels
  forced27b
  ;;
forced) forced8b; forced27b ;;
*)
  sed -n '2,7p' "$0" | cut -c3- >&2
  exit 2
  ;;
esac
wait
