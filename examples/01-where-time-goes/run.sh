#!/usr/bin/env bash
# Where does a step's time go, and how fast could it be?
set -euo pipefail
cd "${1:-$(mktemp -d)}"

specpilot stock init stock --engine miniengine
specpilot profile stock --requests 4 -o - | tee profile.json | specpilot ceiling - -o ceiling.json
specpilot show ceiling.json
