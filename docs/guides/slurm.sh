#!/usr/bin/env bash
#SBATCH --job-name=rag-r1
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --exclusive
#SBATCH --time=48:00:00
#SBATCH --requeue
#SBATCH --output=rag-r1-%j.log
# A training on the nodes of one SLURM job: Ray on each, the training on the first.
#   MODEL=... DATA=... RETRIEVER_URL=... sbatch docs/guides/slurm.sh train_ppo_mq.sh [key=value ...]
# Submit it in the project's root, which all nodes must share. VENV: the Python environment (default .venv).
# A requeued job resumes from its last checkpoint.
set -euo pipefail

cd "${SLURM_SUBMIT_DIR:?run this with sbatch}"
door=${1:?which script: train_ppo.sh, train_ppo_mq.sh or train_grpo.sh}
shift
gpus=${SLURM_GPUS_PER_NODE:-8}
export RAY_USAGE_STATS_ENABLED=0 PORT=${PORT:-6379}

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(srun --nodes=1 --ntasks=1 --nodelist="$first" hostname -I | awk '{print $1}')
guide=docs/guides/ray_node.sh

# Processes of a SLURM step end with it, so each node's step runs until Ray ends.
on() { srun --overlap --nodes=1 --ntasks=1 --nodelist="$1" --export=ALL "${@:2}"; }
BLOCK=1 on "$first" bash "$guide" head "$address" &
for other in $(scontrol show hostnames "$SLURM_JOB_NODELIST" | tail -n +2); do
  BLOCK=1 on "$other" bash "$guide" worker "$address" &
done
trap 'jobs -p | xargs -r kill' EXIT

for _ in $(seq 60); do # the first node needs a moment to start
  if on "$first" bash "$guide" wait "$SLURM_JOB_NUM_NODES"; then break; fi
  sleep 5
done
on "$first" bash "$door" "trainer.nnodes=$SLURM_JOB_NUM_NODES" "trainer.n_gpus_per_node=${gpus##*:}" \
  "+ray_kwargs.ray_init.address=auto" "$@"
