#!/usr/bin/env bash
# Where does a step of stock SGLang go on this GPU? Needs a CUDA GPU and SGLang's dependencies (README.md beside this).
# $1: a deployment of profiles/deployments/, $2: the folder to work in.
set -euo pipefail
deployment=${1:-dense8b__dflash__h200-sxm__r1}
cd "${2:-$(mktemp -d)}"

specpilot stock init stock --engine sglang-0.5.20          # or: --wheel FILE, --clone DIR; a second time does nothing
specpilot profile stock --deployment "$deployment" --requests 8 -o profile.json
specpilot show profile.json

# the same deployment at another block size: flags after -- are SGLang's own, the last one of a name wins
specpilot profile stock --deployment "$deployment" --requests 8 -o block8.json -- --speculative-dflash-block-size 8
