#!/usr/bin/env bash
# Creates the Python environment on first use; later calls return at once.
#
#   bash scripts/setup_env.sh [--dev]            create it
#   source scripts/setup_env.sh --run|--dev      create it and put it first in PATH (used by the scripts in the root)
#
# Where:      $VENV, else the active virtual environment, else .venv in the project's folder
# Platform:   $RAG_R1_PLATFORM (cpu or gpu), else gpu if nvidia-smi finds a GPU, else cpu
# Python:     $PYTHON, else the first of python3.11, python3.12 and python3 that is one of these two versions
# Installer:  $RAG_R1_INSTALLER (uv or pip), else uv, and pip where uv cannot be had; scripts/install.sh tells the order
# --dev       also installs what the tests and checks need
#
# Linux on x86-64 (glibc 2.31 or newer) with Python 3.11 or 3.12, as the locked packages are built for it; anything else is
# refused. GPUs have further requirements (driver, CUDA toolkit): scripts/gpu_env.sh describes them and checks them first.
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

_rag_r1_refuse() { printf 'setup: error: %s\n' "$1" >&2; return 1; }

# Refuses a machine for which the locked packages have no wheels.
_rag_r1_machine() {
  local system libc
  system=$(uname -sm)
  if [ "$system" != "Linux x86_64" ]; then
    _rag_r1_refuse "RAG-R1 installs on Linux x86-64, and this is $system: use such a machine, a linux/amd64 container or WSL 2"
    return 1
  fi
  command -v getconf > /dev/null || return 0
  libc=$(getconf GNU_LIBC_VERSION 2>/dev/null) || libc=another
  case "$libc" in
    "glibc 2."[0-9] | "glibc 2."[12][0-9] | "glibc 2.30" | another | undefined)
      _rag_r1_refuse "RAG-R1's packages need glibc 2.31 or newer, and this system's C library is $libc: use Debian 11, Ubuntu 20.04 or newer"
      ;;
  esac
}

# Succeeds if $1 is an interpreter that the pinned packages have wheels for.
_rag_r1_fits() {
  "$1" -c "import sys; sys.exit(not ((3, 11) <= sys.version_info[:2] <= (3, 12) and sys.implementation.name == 'cpython'))" 2>/dev/null
}

_rag_r1_python() {
  local candidate
  for candidate in ${PYTHON:-python3.11 python3.12 python3}; do
    if _rag_r1_fits "$candidate"; then
      echo "$candidate"
      return 0
    fi
  done
  _rag_r1_refuse "RAG-R1 needs Python 3.11 or 3.12, and none was found (tried: ${PYTHON:-python3.11 python3.12 python3}): install python3.11 and its venv module, or name one, PYTHON=<path>"
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
  # shellcheck source=scripts/install.sh
  source "$root/scripts/install.sh"

  wanted="$platform $mode $(cat "$root/pyproject.toml" "$root"/requirements/*.txt | cksum) $root"
  # An environment with the test tools is also good for runs.
  if ! grep -qxF -e "$wanted" -e "${wanted/ run / --dev }" "$stamp" 2>/dev/null; then
    _rag_r1_machine || return 1
    if [ "$platform" = gpu ]; then _rag_r1_gpu_ready || return 1; fi
    if [ ! -x "$venv/bin/python" ]; then
      python=$(_rag_r1_python) || return 1
      _rag_r1_say "creating $venv with $("$python" --version 2>&1)"
      "$python" -m venv "$venv" ||
        { _rag_r1_fail "$python cannot create $venv" "on Debian or Ubuntu: apt install python3-venv"; return 1; }
    elif ! _rag_r1_fits "$venv/bin/python"; then
      _rag_r1_refuse "RAG-R1 needs Python 3.11 or 3.12, and the environment $venv has $("$venv/bin/python" --version 2>&1): remove it, or name another folder, VENV=<folder>"
      return 1
    fi
    # If the installation fails, the environment is not the former one either.
    if [ -e "$stamp" ]; then : > "$stamp"; fi
    _rag_r1_install || return 1
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
