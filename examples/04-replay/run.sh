#!/usr/bin/env bash
# How many tokens a step could any draft tree give, what would each budget cost, and how high is the ceiling then?
set -euo pipefail
cd "${1:-$(mktemp -d)}"

specpilot stock init stock --engine miniengine
specpilot profile stock --requests 4 -o profile.json
specpilot lattice record stock --requests 10 --positions 16 -o lattices
specpilot replay lattices -b all -n 1..63 --positions 8,16 --cost profile.json --batch 8 -o replay.json
specpilot ceiling profile.json --replay replay.json -o ceiling.json
specpilot show ceiling.json
