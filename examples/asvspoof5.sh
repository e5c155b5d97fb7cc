#!/usr/bin/env bash
# The paper's two tables and its figure, from the ASVspoof 5 download.
#
#   examples/asvspoof5.sh /data/ASVspoof5 runs
#
# The first argument is the folder that holds flac_T, flac_D and the protocol files (docs/training.md has
# the layout); the second is where runs go. Give the same command again after an interruption.
# Several GPUs: GPUS=4 examples/asvspoof5.sh …
set -euo pipefail
corpus=${1:?"usage: $0 CORPUS RUNS"}
runs=${2:?"usage: $0 CORPUS RUNS"}
train="$corpus/ASVspoof5.train.tsv"
dev="$corpus/ASVspoof5.dev.track_1.tsv"

asvspoof-cm protocol "$train" --expect train --audio "$corpus"
asvspoof-cm protocol "$dev" --expect dev --audio "$corpus"

# Decode once, two bytes a sample, so that no epoch waits for FLAC.
asvspoof-cm pack --protocol "$train" --audio "$corpus" --out "$runs/packed/train"
asvspoof-cm pack --protocol "$dev" --audio "$corpus" --out "$runs/packed/dev"

study=(study --systems 1 2 3 4 5 6 --seeds 42 63 2026 --out "$runs"
    --train-protocol "$train" --dev-protocol "$dev"
    --audio "$runs/packed/train" --dev-audio "$runs/packed/dev")
if [[ ${GPUS:-1} -gt 1 ]]; then
    torchrun --standalone --nproc-per-node "$GPUS" -m asvspoof_cm "${study[@]}"
else
    asvspoof-cm "${study[@]}"
fi

asvspoof-cm report "$runs"/[1-6]-* --out "$runs/report"
python "$(dirname "$0")/paper/figure.py" "$runs"/[1-6]-* --out "$runs/report/training_efficiency.pdf"
