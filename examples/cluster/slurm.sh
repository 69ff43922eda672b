#!/bin/bash
# A sketch of a SLURM job: Ray on every machine of the job, and one run of bertfeat on it. `sbatch slurm.sh`; the same
# command resumes a run whose job was killed or ran out of time.
#SBATCH --job-name=bertfeat
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-task=8
#SBATCH --cpus-per-task=64
#SBATCH --mem=0
#SBATCH --time=24:00:00
set -euo pipefail

shared=${SHARED:?the folder that every machine sees}
source "$shared/venv/bin/activate"

# A token of this job's own, which only this user can read.
umask 077
export RAY_AUTH_TOKEN_PATH="$shared/ray-token-$SLURM_JOB_ID"
python -c "import secrets; print(secrets.token_hex(32))" > "$RAY_AUTH_TOKEN_PATH"
trap 'rm -f "$RAY_AUTH_TOKEN_PATH"' EXIT
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address="$(srun --nodes=1 --ntasks=1 -w "$head" hostname --ip-address | awk '{print $1}'):6379"

# Starts Ray on every machine, runs what stands after -- on the first one, and stops Ray.
srun ray symmetric-run --address "$address" --min-nodes "$SLURM_NNODES" \
    --num-cpus="$SLURM_CPUS_PER_TASK" --num-gpus=8 --include-dashboard=false --object-store-memory=1000000000 -- \
    bertfeat extract "$shared"/corpus/*.jsonl -o "$shared/features" --model "$shared/models/bert-base-cased" \
    --level sentence --layers -1 --device cuda --runner ray --ray-address "$address"
