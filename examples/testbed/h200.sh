#!/usr/bin/env bash
# The steps on one GPU host without network: `bash examples/testbed/h200.sh STEP`, from the repository's root.
# Each stays under nine minutes, keeps its state in $STATE (default /tmp/tb) and writes logs and results to $OUT, in files
# of at most 15 MB. Steps of one group need the state of those before them.
#
#   step      brings     MB   needs   does                                             writes to $OUT
#   first     .tb/a      48   -       keeps the first half of the GGUF; smoke runs     smoke-*.log
#   train     .tb/b      47   first   converts, writes text, trains, evaluates         train.log, evaluation.json, 2 drafters
#   more      -           0   train   goes on where `train` was cut off (MINUTES)      the same
#   serve     .tb/e      55   train   SmolLM2 on stock SGLang: AR and four drafters    serve.json, logs, the third drafter
#   dense8b   -           0   serve   8B stand-in: build, check, serve                 check.json, dense8b.json, logs
#   core      .tb/t       2   -       trains the hybrid core and its drafters          core.log, evaluation.json, drafters
#   hyb27b    .tb/e      55   core    27B stand-in: build, serve                       hyb27b.json, logs, the core
#
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

training() { # text for at most $TEXT minutes, then training until 45 s before $TOTAL minutes are over, for files and evaluation;
  # or with MINUTES for so long, over as many calls as it takes (each at most $LIMIT seconds)
  local until=(--total-minutes "${TOTAL:-8}")
  [ -z "${MINUTES:-}" ] || until=(--minutes "$MINUTES")
  timeout "${LIMIT:-510}" python3 "$here/train.py" --target "$state/smollm2" --work "$state/work" --out "$state/drafters" \
    --prompts "$state/prompts" --text-minutes "${TEXT:-1.7}" "${until[@]}" ${TRAIN:-} 2>&1 | tee "$out/train.log"
  [ -f "$state/drafters/evaluation.json" ] || return 0
  cp "$state/drafters/evaluation.json" "$out/"
  parts dflash2 drafters/dflash2 drafters/eagle3
  tar -C "$state" -cf - $(cd "$state" && ls work/texts-*.json) | xz -T0 -6 >"$out/texts.tar.xz"
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
train)
  cp -r .tb/b/. "$state/"
  cat "$state"/gguf.xz.* | xz -dc -T0 >"$state/smollm2.gguf" || exit 1
  PYTHONPATH=$PYTHONPATH:$state/site python3 "$here/convert.py" "$state/smollm2.gguf" --out "$state/smollm2" || exit 1
  training
  ;;
more) training ;;
serve)
  engine
  timeout 500 python3 "$here/serve.py" --target "$state/smollm2" --drafters "$state/drafters" --prompts "$state/prompts" \
    --out "$state/serve.json" --limit-s 130 --systems ${SYSTEMS:-ar dflash2@8 dspark@7 eagle3@5 dflash2@16} 2>&1 |
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
  echo "steps: first train more serve dense8b core hyb27b" >&2
  exit 2
  ;;
esac
