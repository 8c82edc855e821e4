#!/usr/bin/env bash
# R1-Searcher, both stages in one command; run the same command again to resume after an interruption.
#   MODEL=... DATA=... RETRIEVER_URL=... bash recipes/r1_searcher/run.sh [qwen|llama] [--check-only] [key=value ...]
# See `--help`.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)

usage() {
  cat <<EOF
Train a search agent in R1-Searcher's two stages: first to call the search engine, then to use it.

  MODEL=... DATA=... RETRIEVER_URL=... bash recipes/r1_searcher/run.sh [qwen|llama] [--check-only] [key=value ...]
      qwen            base model, bare-text prompt (the default); llama: instruct model, chat template
      MODEL           a model folder, or a name on the Hugging Face Hub
      DATA            a folder with stage1/ and stage2/, each with train.parquet and test.parquet
                      (python -m data_process.r1_searcher; for llama with --protocol r1_searcher_instruct)
      RETRIEVER_URL   a running retrieval server (rag-r1 index serve)
      --check-only    run every check of both stages and start nothing
      key=value       sets any key of the recipes, for both stages (Hydra); stage1:key=value for one of them

If it is killed or the machine fails, run the same command again to resume: within a stage from the last checkpoint,
between the stages from stage 1's model.

Other environment variables:
  OUT               folder for checkpoints and trajectories (default: outputs/r1_searcher/qwen or .../llama)
  VENV              the Python environment to use or create (default: the active one, else .venv)
  RAG_R1_PLATFORM   cpu or gpu, overrides the choice by nvidia-smi

Examples:
  MODEL=Qwen/Qwen2.5-7B DATA=data/r1s RETRIEVER_URL=http://127.0.0.1:8000 bash recipes/r1_searcher/run.sh
  ... bash recipes/r1_searcher/run.sh stage1:r1_searcher/algorithm=reinforce_pp stage2:trainer.total_epochs=2
  ... bash recipes/r1_searcher/run.sh llama stage1:r1_searcher/reward=llama_stage1 stage2:r1_searcher/reward=llama_stage2
EOF
}

for argument in "$@"; do
  case $argument in -h | --help) usage; exit 0 ;; esac
done
fail() { printf 'error: %s\n' "$1" >&2; printf '  -> %s\n' "${@:2}" >&2; exit 2; }

model=qwen
case ${1:-} in qwen | llama) model=$1; shift ;; esac
missing=()
for name in MODEL DATA RETRIEVER_URL; do
  if [ -z "${!name:-}" ]; then missing+=("$name"); fi
done
if [ ${#missing[@]} -gt 0 ]; then
  fail "${missing[*]} not set" "bash recipes/r1_searcher/run.sh --help explains each"
fi
platform=${RAG_R1_PLATFORM:-cpu}
if [ -z "${RAG_R1_PLATFORM:-}" ] && nvidia-smi -L 2>/dev/null | grep -q GPU; then platform=gpu; fi

export RAG_R1_PLATFORM=$platform
# In a clone the environment is made on first use; in an installation from a wheel, the active one is used.
if [ -f "$root/scripts/setup_env.sh" ]; then
  # shellcheck source=scripts/setup_env.sh
  source "$root/scripts/setup_env.sh" --run
fi
rag-r1 doctor

# key='value' for Hydra, quoted so that the value may contain anything.
override() { printf "%s='%s'" "$1" "${2//\'/\\\'}"; }
# Ray's workers may run in another working directory.
absolute() { if [ -e "$1" ]; then realpath "$1"; else printf '%s' "$1"; fi; }
data=$(absolute "$DATA")
exec rag-r1 stages --out "${OUT:-outputs/r1_searcher/$model}" \
  --recipe "$here/stage1_$model" --recipe "$here/stage2_$model" \
  "platform=$platform" \
  "$(override actor_rollout_ref.model.path "$(absolute "$MODEL")")" \
  "$(override data.train_files "$data/stage{stage}/train.parquet")" \
  "$(override data.val_files "$data/stage{stage}/test.parquet")" \
  "$(override rag_r1.retriever.url "$RETRIEVER_URL")" "$@"
