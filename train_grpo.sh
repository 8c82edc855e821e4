#!/usr/bin/env bash
# Train a search agent: GRPO, up to three queries per turn. See `bash train_grpo.sh --help`.
#   bash train_grpo.sh                                                       the embedded demo, on a CPU
#   MODEL=... DATA=... RETRIEVER_URL=... bash train_grpo.sh [key=value ...]  your model and data, on GPUs
exec bash "$(dirname "${BASH_SOURCE[0]}")/scripts/train.sh" grpo "$@"
