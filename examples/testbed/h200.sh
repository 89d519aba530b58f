#!/usr/bin/env bash
# The steps on one GPU host without network: `bash examples/testbed/h200.sh STEP`, from the repository's root.
# Each stays under nine minutes, keeps its state in $STATE (default /tmp/tb) and writes logs and results to $OUT, in files
# of at most 15 MB. Steps of one group need the state of those before them.
#
#   step      brings     MB   needs   does                                             writes to $OUT
#   speed     -           0   -       times of all parts, random weights (100 s)       speed.json
#   first     .tb/a      48   -       keeps the first half of the GGUF; smoke runs     smoke-*.log
#   trials    .tb/b      41   first   converts, writes text, tries recipes (560 s)     trials.json, trials.log
#   train     .tb/b      41   first   text, the best trial's recipe, evaluation        train.log, evaluation.json, 2 drafters
#   more      -           0   train   goes on where `train` was cut off (MINUTES)      the same
#   lattices  -           0   train   lattices of DFLASH2 and DSPARK, their replay     replay-*.json
#   serve     .tb/e      55   train   SmolLM2 on stock SGLang: AR and four drafters    serve.json, logs, the third drafter
#   dense8b   -           0   serve   8B stand-in: build, check, serve                 check.json, dense8b.json, logs
#   core      .tb/t       2   -       trains the hybrid core and its drafters          core.log, evaluation.json, drafters
#   hyb27b    .tb/e      55   core    27B stand-in: build, serve                       hyb27b.json, logs, the core
#
# `train` behind `trials` brings nothing: target and text are there. After a crash every step can be called again.
# .tb is what prepare.sh makes. ENGINE (default .tb/e/setup_host.sh) is sourced with its folder as the argument and makes
# `import sglang` work in python3; where SGLang 0.5.20 is installed, ENGINE=/dev/null.
set -uo pipefail
step=$1 state=${STATE:-/tmp/tb} out=${OUT:?where results go}
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH=$here/../..${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=true
mkdir -p "$state" "$out"

parts() { # NAME PATHS...: an archive in parts that fit through, from $state
  local name=$1
  shift
  tar -C "$state" -cf - "$@" | xz -T0 -1 | split -b 15M -d - "$out/$name.tar.xz."
}

engine() { # makes SGLang importable; what a step before unpacked is used again
  local script=${ENGINE:-.tb/e/setup_host.sh}
  if [ -f "$state/engine-path" ]; then
    export PYTHONPATH=$(cat "$state/engine-path") SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK=1
  else
    . "$script" "$(dirname "$script")"
    echo "$PYTHONPATH" >"$state/engine-path"
  fi
}

target() { # SmolLM2 and the prompts, from both halves
  [ ! -f "$state/smollm2/manifest.json" ] || return 0
  cp .tb/b/gguf.xz.* "$state/" && cp -r .tb/b/prompts .tb/b/site "$state/" || return 1 # nothing else of .tb/b
  cat "$state"/gguf.xz.* | xz -dc -T0 >"$state/smollm2.gguf" || return 1
  PYTHONPATH=$PYTHONPATH:$state/site python3 "$here/convert.py" "$state/smollm2.gguf" --out "$state/smollm2"
}

best() { # the changes of the best trial, if there were trials
  [ ! -f "$state/trials.json" ] || python3 -c "
import json, sys
found = json.load(open(sys.argv[1]))
changes = found['trials'][found['best']]['changes'] if 'best' in found else []
print(*(c for c in changes if not c.startswith('texts=')))" "$state/trials.json"
}

training() { # text for at most $TEXT minutes where `trials` wrote none, then training until $TOTAL minutes are over, files
  # and evaluation included; or with MINUTES for so long, over as many calls as it takes (each at most $LIMIT seconds)
  local until=(--total-minutes "${TOTAL:-8.7}") changes text=1.5 work=$state/work
  [ -z "${MINUTES:-}" ] || until=(--minutes "$MINUTES")
  [ ! -f "$work/texts-seconds.txt" ] || text=0
  changes=(${SET:-$(best)})
  echo "recipe: ${changes[*]:-as it is}"
  timeout "${LIMIT:-560}" python3 "$here/train.py" --target "$state/smollm2" --work "$work" --out "$state/drafters" \
    --prompts "$state/prompts" --text-minutes "${TEXT:-$text}" "${until[@]}" ${TRAIN:-} \
    ${changes[0]:+--set "${changes[@]}"} 2>&1 |
    tee -a "$state/train.log"
  cp "$state/train.log" "$out/"
  [ -f "$state/drafters/evaluation.json" ] || return 0
  cp "$state/drafters/evaluation.json" "$out/"
  parts dflash2 drafters/dflash2 drafters/eagle3
}

logs() { tar -C "$state" -cJf "$out/$1-logs.tar.xz" $(cd "$state" && ls "$1"*.log "$1"-texts.json 2>/dev/null); }

case $step in
first)
  cp .tb/a/gguf.xz.* "$state/"
  [ "${SMOKE:-yes}" = no ] || for script in train core; do # every stage in miniature on the GPU: what does not work there shows in a minute
    timeout 150 python3 "$here/$script.py" --smoke --device cuda --work "$state/smoke-$script" \
      --out "$state/smoke-$script/out" 2>&1 | tee "$out/smoke-$script.log"
  done
  ;;
speed) timeout 100 python3 "$here/speed.py" --out "$out/speed.json" --until "${LIMIT:-85}" ;;
trials) # each on top of the best so far; what there is no time for is left out
  begun=$SECONDS
  trials=("${@:2}")
  [ ${#trials[@]} -gt 0 ] || trials=("base:" "+muon:optimizer=muon;rate=2e-3" "+layers5:layers=5" "+reach:reach=0.5"
    "+rate:rate=3e-3" "+hard:hard=0.8" "+soft:softness=0.5" "random:init=random")
  target || exit 1
  [ ! -f "$state/trials.json" ] || cp "$state/trials.json" "$out/"
  timeout "$((${LIMIT:-560} + 20))" python3 "$here/experiments.py" --target "$state/smollm2" --texts "$state/work" \
    --prompts "$state/prompts" --out "$out/trials.json" --drafter "${DRAFTER:-dflash2}" --write "${TEXT:-1.5}" \
    --seconds "${EACH:-45}" --until "$((${LIMIT:-560} - (SECONDS - begun)))" ${TRAIN:-} "${trials[@]}" 2>&1 | tee "$out/trials.log"
  cp "$out/trials.json" "$state/"
  ;;
train)
  target || exit 1
  training
  ;;
more) training ;;
lattices) # needs what `specpilot` needs; the lattices themselves (0.4 GB a drafter) stay there
  for name in ${DRAFTERS:-dflash2 dspark}; do
    python3 "$here/lattices.py" --target "$state/smollm2" --drafter "$state/drafters/$name" --prompts "$state/prompts" \
      --out "$state/lattices/$name" --rows 16 2>&1 | tee -a "$out/lattices.log"
    python3 -m specpilot_cli replay "$state/lattices/$name" -b all -n "${NODES:-8,16,24,32,48,63}" -o "$out/replay-$name.json" \
      2>&1 | tee -a "$out/lattices.log"
  done
  ;;
serve)
  engine
  timeout 500 python3 "$here/serve.py" --target "$state/smollm2" --drafters "$state/drafters" --prompts "$state/prompts" \
    --out "$state/serve.json" --limit-s 400 --together --systems ${SYSTEMS:-ar dflash2@8 dspark@7 eagle3@5 dflash2@16} 2>&1 |
    tee "$out/serve.log"
  cp "$state/serve.json" "$out/"
  logs serve
  parts dspark drafters/dspark
  ;;
dense8b)
  engine
  python3 "$here/standin.py" build standin-dense8b --core "$state/smollm2" --drafters "$state/drafters" \
    --out "$state/dense8b" 2>&1 | tee "$state/dense8b-build.log"
  cp "$state"/smollm2/tokenizer*.json "$state/dense8b/target/"
  python3 "$here/standin.py" check --core "$state/smollm2" --full "$state/dense8b/target" --prompts "$state/prompts" \
    2>&1 | tee "$out/check.json"
  timeout 330 python3 "$here/serve.py" --target "$state/dense8b/target" --drafters "$state/dense8b" \
    --prompts "$state/prompts" --out "$state/dense8b.json" --limit-s 110 \
    --systems ${SYSTEMS:-ar dflash2@8 dspark@7} 2>&1 | tee "$out/dense8b.log"
  cp "$state/dense8b.json" "$out/"
  logs dense8b
  ;;
core)
  cp -r .tb/t/. "$state/"
  timeout 520 python3 "$here/core.py" --text "$state/text.tar.xz" --work "$state/core-work" --out "$state/core" \
    --core-minutes "${CORE:-3.5}" --drafter-minutes "${DRAFT:-2.5}" 2>&1 | tee "$out/core.log"
  cp "$state/core/evaluation.json" "$out/"
  parts core-drafters core/dflash2 core/dspark core/tokenizer.json
  ;;
hyb27b)
  engine
  parts core core/core
  python3 "$here/standin.py" build standin-hyb27b --core "$state/core/core" --drafters "$state/core" \
    --out /dev/shm/hyb27b 2>&1 | tee "$state/hyb27b-build.log"
  python3 -c "
import json, sys
rows = json.load(open(sys.argv[1]))
json.dump({'held': [r[:64] for r in rows]}, open(sys.argv[2], 'w'))" "$state/core-work/held.json" "$state/held-ids.json"
  timeout 450 python3 "$here/serve.py" --target /dev/shm/hyb27b/target --drafters /dev/shm/hyb27b \
    --prompts "$state/held-ids.json" --out "$state/hyb27b.json" --limit-s 170 --new-tokens 192 \
    --set 'linear_attn_backend="triton"' 'mem_fraction_static=0.85' \
    --systems ${SYSTEMS:-ar dflash2@8 dspark@7} 2>&1 | tee "$out/hyb27b.log"
  cp "$state/hyb27b.json" "$out/"
  logs hyb27b
  ;;
*)
  echo "steps: speed first trials train more lattices serve dense8b core hyb27b" >&2
  exit 2
  ;;
esac
