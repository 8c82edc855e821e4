#!/usr/bin/env bash
# Shared code of train_ppo.sh, train_ppo_mq.sh and train_grpo.sh: train.sh <recipe> [arguments].
# Without MODEL, DATA, RETRIEVER_URL and a GPU: the embedded demo. With all three set: recipes/rag_r1/<recipe>.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
recipe=${1:-}
shift $(($# > 0))
case $recipe in
  ppo_sq) door=train_ppo.sh what="PPO, one query per turn" ;;
  ppo_mq) door=train_ppo_mq.sh what="PPO, up to three queries per turn" ;;
  grpo) door=train_grpo.sh what="GRPO, up to three queries per turn" ;;
  *) echo "error: scripts/train.sh knows ppo_sq, ppo_mq and grpo, not '$recipe'" >&2; exit 2 ;;
esac

usage() {
  cat <<EOF
Train a search agent ($what) with veRL.

  bash $door [key=value ...]
      On a machine without a GPU: the embedded demo. A tiny policy learns to search an invented world, in
      minutes, with the real veRL, Ray, FSDP, vLLM and retrieval server. Creates its Python environment on first
      use.

  MODEL=... DATA=... RETRIEVER_URL=... bash $door [--check-only] [key=value ...]
      Your model and data, with the recipe recipes/rag_r1/$recipe (its README lists the hardware).
      MODEL           a model folder, or a name on the Hugging Face Hub
      DATA            a folder with train.parquet and test.parquet (written by data_process/)
      RETRIEVER_URL   a running retrieval server (rag-r1 index serve --index DIR)
      --check-only    run every check and start nothing

key=value sets any key of the recipe, of veRL or of the block rag_r1: (Hydra).

Other environment variables:
  DEMO=1            runs the demo even on a machine with a GPU (it uses the CPU)
  VENV              the Python environment to use or create (default: the active one, else .venv)
  RAG_R1_PLATFORM   cpu or gpu, overrides the choice by nvidia-smi
  CUDA_HOME, FLASH_ATTN_WHEEL, MAX_JOBS
                    for the first installation on a GPU machine; scripts/gpu_env.sh explains them

Examples:
  bash $door
  bash $door trainer.total_training_steps=5
  MODEL=Qwen/Qwen2.5-7B-Instruct DATA=data/mq RETRIEVER_URL=http://127.0.0.1:8000 \\
      bash $door trainer.total_training_steps=100 trainer.logger=[console,file,wandb]
EOF
}

for argument in "$@"; do
  case $argument in -h | --help) usage; exit 0 ;; esac
done

fail() { printf 'error: %s\n' "$1" >&2; printf '  -> %s\n' "${@:2}" >&2; exit 2; }

# Decide first what to run, so that nothing is installed for a command that cannot work.
given=() missing=()
for name in MODEL DATA RETRIEVER_URL; do
  if [ -n "${!name:-}" ]; then given+=("$name"); else missing+=("$name"); fi
done
platform=${RAG_R1_PLATFORM:-cpu}
if [ -z "${RAG_R1_PLATFORM:-}" ] && nvidia-smi -L 2>/dev/null | grep -q GPU; then platform=gpu; fi

demo=${DEMO:-0} problems=()
case $platform in
  cpu | gpu) ;;
  *) problems+=("RAG_R1_PLATFORM is '$platform': set it to cpu or gpu, or unset it") ;;
esac
if [ "$demo" != 1 ]; then
  if [ ${#given[@]} -eq 0 ] && [ "$platform" = gpu ]; then
    fail "this machine has a GPU, so choose what to train: ${missing[*]} are not set" \
      "MODEL=<model> DATA=<folder of parquet files> RETRIEVER_URL=http://<host>:<port> bash $door" \
      "or DEMO=1 bash $door for the embedded demo, on the CPU" "see bash $door --help"
  elif [ ${#given[@]} -gt 0 ] && [ ${#missing[@]} -gt 0 ]; then
    problems+=("${given[*]} given, but not ${missing[*]}: set all three for a training of your own, or none for the demo")
  elif [ ${#given[@]} -eq 0 ]; then
    demo=1
  fi
fi

# An installation takes minutes. What can be seen without one is checked before the first; later, with all else,
# by the preflight, which a missing variable keeps from running.
if [ ${#problems[@]} -gt 0 ] || { [ ! -x "${VENV:-$root/.venv}/bin/rag-r1" ] && ! command -v rag-r1 >/dev/null; }; then
  before='' flags='--recipe --check-only --supervise --leave-model --hours --estimate'
  if [ "$demo" = 1 ]; then flags='--recipe --check-only --seed --out --timeout'; fi
  for argument in "$@"; do
    case $argument in
      -[!0-9]*) [[ " $flags" == *" ${argument%%=*}"* ]] || problems+=("${argument%%=*} is none of the flags $flags") ;;
      -* | '~'?* | @?* | *=*) ;;
      *) case $before in --check-only | --supervise | --leave-model | --estimate | --*=* | [!-]* | '') problems+=("'$argument' is not key=value") ;; esac ;;
    esac
    before=$argument
  done
  if [ "$demo" != 1 ]; then
    if [[ -e ${MODEL:=} || $MODEL == [./~]* ]] && [ ! -f "$MODEL/config.json" ]; then
      problems+=("MODEL=$MODEL is not a model folder: there is no config.json in it")
    fi
    for file in train test; do
      [[ -z ${DATA:=} || $DATA == *://* || "$*" == *data.*_files=* || -f $DATA/$file.parquet ]] ||
        problems+=("DATA=$DATA has no $file.parquet: make it with a script in data_process/")
    done
    [[ -z ${RETRIEVER_URL:=} || $RETRIEVER_URL == http?(s)://* ]] ||
      problems+=("RETRIEVER_URL must be an address such as http://127.0.0.1:8000")
  fi
  [ ${#problems[@]} -eq 0 ] || fail "nothing was started" "${problems[@]}" "see bash $door --help"
fi

if [ "$demo" = 1 ]; then
  # If .venv is a GPU environment, the demo needs a separate one.
  if [ "$platform" = gpu ]; then export VENV=${VENV:-$root/.venv-cpu}; fi
  platform=cpu
fi

export RAG_R1_PLATFORM=$platform
# shellcheck source=scripts/setup_env.sh
source "$root/scripts/setup_env.sh" --run
# The retriever is left to the preflight, which reports it together with problems of the configuration.
env -u RETRIEVER_URL rag-r1 doctor

if [ "$demo" = 1 ]; then
  exec python -m rag_r1.demo.run --recipe "$recipe" "$@"
fi

# key='value' for Hydra, quoted so that the value may contain anything.
override() { printf "%s='%s'" "$1" "${2//\'/\\\'}"; }
# Ray's workers may run in another working directory.
absolute() { if [ -e "$1" ]; then realpath "$1"; else printf '%s' "$1"; fi; }
model=$(absolute "$MODEL")
data=$(absolute "$DATA")
exec rag-r1 train --recipe "$root/recipes/rag_r1/$recipe" "platform=$platform" \
  "$(override actor_rollout_ref.model.path "$model")" \
  "$(override data.train_files "$data/train.parquet")" \
  "$(override data.val_files "$data/test.parquet")" \
  "$(override rag_r1.retriever.url "$RETRIEVER_URL")" "$@"
