#!/usr/bin/env bash
# Creates the Python environment on first use; later calls return at once.
#
#   bash scripts/setup_env.sh [--dev]            create it
#   source scripts/setup_env.sh --run|--dev      create it and put it first in PATH (used by the scripts in the root)
#
# Where:      $VENV, else the active virtual environment, else .venv in the project's folder
# Platform:   $RAG_R1_PLATFORM (cpu or gpu), else gpu if nvidia-smi finds a GPU, else cpu
# Python:     $PYTHON, else the first of python3.11, python3.12, python3.10 with a supported version
# --dev       also installs what the tests and checks need
#
# GPUs have further requirements (driver, CUDA toolkit): scripts/gpu_env.sh describes them and checks them first.
# A stamp file in the environment has the hash of what was installed; a new installation is made only if it changes.

_rag_r1_say() { printf 'setup: %s\n' "$*" >&2; }
_rag_r1_fail() {
  printf 'setup: error: %s\n' "$1" >&2
  [ -z "${2:-}" ] || printf '       remedy: %s\n' "$2" >&2
  return 1
}

_rag_r1_platform() {
  case "${RAG_R1_PLATFORM:-}" in
    cpu | gpu) echo "$RAG_R1_PLATFORM" ;;
    "") if nvidia-smi -L 2>/dev/null | grep -q GPU; then echo gpu; else echo cpu; fi ;;
    *) _rag_r1_fail "RAG_R1_PLATFORM is '$RAG_R1_PLATFORM'" "set it to cpu or gpu, or unset it" ;;
  esac
}

# The first interpreter with a version that the pinned packages (numpy, pandas) support.
_rag_r1_python() {
  local lowest=11 candidate
  for candidate in ${PYTHON:-python3.11 python3.12 python3.10 python3}; do
    if "$candidate" -c "import sys; sys.exit(not (3, $lowest) <= sys.version_info[:2] <= (3, 12))" 2>/dev/null; then
      echo "$candidate"
      return 0
    fi
  done
  _rag_r1_fail "no Python 3.$lowest to 3.12 was found (tried: ${PYTHON:-python3.11 python3.12 python3.10 python3})" \
    "install Python 3.11 and its venv module, or name an interpreter: PYTHON=/path/to/python3.11"
}

# Runs pip with the given arguments, showing one line of progress; pip's own output goes to $log.
_rag_r1_pip() {
  local counter='{ print >> logfile } /^(Collecting|Requirement already)/ { n++; printf "\r  %d packages looked up ", n; fflush() }
    /^Installing collected/ { printf "\r  installing (a minute or two)          "; fflush() } END { print "" }'
  "$venv/bin/python" -m pip install --disable-pip-version-check --progress-bar off "$@" 2>&1 |
    awk -v logfile="$log" "$counter" >&2
  [ "${PIPESTATUS[0]}" -eq 0 ] && return 0
  grep -E '^ *(ERROR|error):' "$log" | tail -5 >&2
  if grep -q 'No matching distribution found for torch==.*+cpu' "$log"; then
    _rag_r1_fail "pip finds no CPU build of torch, which PyTorch publishes in a package index of its own" \
      "add that index (pytorch.org, Get Started, Compute Platform CPU) to pip: PIP_EXTRA_INDEX_URL=<its URL>"
  else
    _rag_r1_fail "pip failed; its whole output is in $log" "look for the first ERROR there, then run this again"
  fi
}

_rag_r1_setup() {
  local root platform venv stamp wanted log python mode=run
  # If sourced without arguments, this file sees those of the calling script: only --dev has a meaning here.
  [ "${1:-}" != --dev ] || mode=--dev
  root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) || return 1
  platform=$(_rag_r1_platform) || return 1
  venv=${VENV:-${VIRTUAL_ENV:-$root/.venv}}
  [ "${venv#/}" != "$venv" ] || venv="$PWD/$venv"
  stamp="$venv/.rag-r1"
  log="$venv/rag-r1-install.log"
  # shellcheck source=scripts/gpu_env.sh
  source "$root/scripts/gpu_env.sh"

  wanted="$platform $mode $(cat "$root/pyproject.toml" "$root"/requirements/*.txt | cksum) $root"
  # An environment with the test tools is also good for runs.
  if ! grep -qxF -e "$wanted" -e "${wanted/ run / --dev }" "$stamp" 2>/dev/null; then
    if [ "$platform" = gpu ]; then _rag_r1_gpu_ready || return 1; fi
    if [ ! -x "$venv/bin/python" ]; then
      python=$(_rag_r1_python) || return 1
      _rag_r1_say "creating $venv with $("$python" --version 2>&1)"
      "$python" -m venv "$venv" ||
        { _rag_r1_fail "$python cannot create $venv" "on Debian or Ubuntu: apt install python3-venv"; return 1; }
    fi
    PYTHON="$venv/bin/python" _rag_r1_python >/dev/null || return 1
    : > "$log"
    if [ "$platform" = cpu ]; then
      _rag_r1_say "installing the CPU environment into $venv (first use: 3 to 6 minutes, 3 GB)"
    else
      _rag_r1_say "installing the GPU environment into $venv (first use: 15 minutes and more, about 15 GB)"
    fi
    _rag_r1_pip --no-deps -r "$root/requirements/$platform.lock.txt" || return 1
    if [ "$mode" = --dev ]; then
      _rag_r1_pip --no-deps -r "$root/requirements/dev.lock.txt" || return 1
      _rag_r1_pip --no-deps --upgrade --target "$venv/apart" -r "$root/requirements/apart.lock.txt" ||
        _rag_r1_say "without requirements/apart.lock.txt: the tests of published chat templates will be left out"
    fi
    _rag_r1_pip --no-deps --no-build-isolation -e "$root" || return 1
    if [ "$platform" = gpu ]; then _rag_r1_flash_attn "$root" || return 1; fi
    echo "$wanted" > "$stamp"
    _rag_r1_say "done"
  fi
  export VIRTUAL_ENV="$venv" PATH="$venv/bin:$PATH" RAG_R1_PLATFORM="$platform"
  # veRL relies on nvidia-smi, and would turn trainer.device=cpu into cuda on a machine that has it.
  if [ "$platform" = cpu ]; then
    export VERL_PLATFORM=cpu
  elif [ "${VERL_PLATFORM:-}" = cpu ]; then
    unset VERL_PLATFORM
  fi
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  case "${1:-}" in
    "" | --run | --dev) ;;
    *) printf 'setup: error: unknown argument %s of setup_env.sh (use --dev)\n' "$1" >&2; exit 2 ;;
  esac
fi
_rag_r1_setup "$@"
_rag_r1_status=$?
if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  [ "$_rag_r1_status" -ne 0 ] || _rag_r1_say "ready: source $VIRTUAL_ENV/bin/activate"
  exit "$_rag_r1_status"
fi
(exit "$_rag_r1_status")
