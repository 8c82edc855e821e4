#!/usr/bin/env bash
# Format-learning SFT with veRL's SFT trainer; run the same command again to resume after an interruption.
#   MODEL=... DATA=... bash recipes/rag_r1/sft/run.sh [--check-only] [key=value ...]
# See `--help`.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)

usage() {
  cat <<EOF
Fine-tune a model on samples of searching and answering, so that it knows the format before reinforcement learning.

  MODEL=... DATA=... bash recipes/rag_r1/sft/run.sh [--check-only] [key=value ...]
      MODEL           a model folder, or a name on the Hugging Face Hub
      DATA            a folder with train.parquet and validation.parquet (rag-r1 sft-data)
      --check-only    run every check and start nothing
      key=value       sets any key of the recipe (Hydra)

The recipe is rag_r1/sft/qwen_7b on a machine with GPUs, and rag_r1/sft/demo, for tiny models, on others.

Other environment variables:
  OUT               folder for checkpoints (default: the recipe's trainer.default_local_dir)
  VENV              the Python environment to use or create (default: the active one, else .venv)
  RAG_R1_PLATFORM   cpu or gpu, overrides the choice by nvidia-smi
EOF
}

for argument in "$@"; do
  case $argument in -h | --help) usage; exit 0 ;; esac
done
fail() { printf 'error: %s\n' "$1" >&2; printf '  -> %s\n' "${@:2}" >&2; exit 2; }

missing=()
for name in MODEL DATA; do
  if [ -z "${!name:-}" ]; then missing+=("$name"); fi
done
if [ ${#missing[@]} -gt 0 ]; then
  fail "${missing[*]} not set" "bash recipes/rag_r1/sft/run.sh --help explains each"
fi
platform=${RAG_R1_PLATFORM:-cpu}
if [ -z "${RAG_R1_PLATFORM:-}" ] && nvidia-smi -L 2>/dev/null | grep -q GPU; then platform=gpu; fi
recipe=qwen_7b
if [ "$platform" = cpu ]; then recipe=demo; fi

export RAG_R1_PLATFORM=$platform
# In a clone the environment is made on first use; in an installation from a wheel, the active one is used.
if [ -f "$root/scripts/setup_env.sh" ]; then
  # shellcheck source=scripts/setup_env.sh
  source "$root/scripts/setup_env.sh" --run
fi

# key='value' for Hydra, quoted so that the value may contain anything.
override() { printf "%s='%s'" "$1" "${2//\'/\\\'}"; }
out=()
if [ -n "${OUT:-}" ]; then out=("$(override trainer.default_local_dir "$OUT")"); fi
exec rag-r1 sft --recipe "$here/$recipe" --data "$DATA" \
  "$(override model.path "$MODEL")" ${out[@]+"${out[@]}"} "$@"
