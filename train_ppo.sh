#!/usr/bin/env bash
# Train a search agent: PPO, one query per turn. See `bash train_ppo.sh --help`.
#   bash train_ppo.sh                                                       the embedded demo, on a CPU
#   MODEL=... DATA=... RETRIEVER_URL=... bash train_ppo.sh [key=value ...]  your model and data, on GPUs
exec bash "$(dirname "${BASH_SOURCE[0]}")/scripts/train.sh" ppo_sq "$@"
