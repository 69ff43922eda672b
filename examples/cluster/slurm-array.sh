#!/bin/bash
# A SLURM array of 16 jobs, each of which does every 16th shard of one run: `sbatch slurm-array.sh`. The same command
# resumes it, whatever was killed or ran out of time. No job waits for another.
#SBATCH --job-name=bertfeat
#SBATCH --array=1-16
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=32G
#SBATCH --time=08:00:00
set -euo pipefail

shared=${SHARED:?the folder that every machine sees}
source "$shared/venv/bin/activate"

bertfeat extract "$shared"/corpus/*.jsonl -o "$shared/features" --model "$shared/models/bert-base-cased" \
    --level sentence --layers -1 --device cuda --shards "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT"
