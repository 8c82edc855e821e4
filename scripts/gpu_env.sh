# shellcheck shell=bash
# Checks the machine for the GPU environment, and installs flash-attn; sourced by scripts/setup_env.sh.
#
# torch 2.11 and vLLM 0.24 are built for CUDA 13, which needs an NVIDIA driver of series 580 or newer. flash-attn 2.8.3
# has no build for this torch, so it is compiled on the machine, with nvcc of CUDA 13 and a C++ compiler. All of that is
# checked before the first download. flash-attn is compiled last and separately, so that a failure costs nothing else.
#
# CUDA_HOME               the CUDA toolkit (default: that of the nvcc in PATH, else /usr/local/cuda)
# FLASH_ATTN_WHEEL        a prebuilt wheel of flash-attn (path or URL): nothing is compiled; or `none`: it is not
#                         installed, and trainings use PyTorch's attention (platform=gpu_sdpa)
# FLASH_ATTN_CUDA_ARCHS   the architectures to compile for, e.g. 80;90 (default: those of this machine's GPUs)
# MAX_JOBS                files compiled at once (default: by cores and free memory, 9 GiB each)

_rag_r1_cuda=13
_rag_r1_driver=580

_rag_r1_smi() { nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null; }

# Succeeds if the machine can run and compile for CUDA 13; otherwise prints the error and its remedy.
_rag_r1_gpu_ready() {
  local driver nvcc release
  driver=$(_rag_r1_smi driver_version | head -1)
  if [ -z "$driver" ]; then
    _rag_r1_say "nvidia-smi reports no driver here (a login node?): the machine where you train needs series $_rag_r1_driver or newer"
  elif [ "${RAG_R1_OLD_DRIVER:-}" != 1 ] && [ "${driver%%.*}" -lt "$_rag_r1_driver" ]; then
    _rag_r1_fail "the NVIDIA driver is $driver, but CUDA $_rag_r1_cuda needs series $_rag_r1_driver or newer" \
      "install a newer driver; or, on data-centre GPUs, NVIDIA's cuda-compat-$_rag_r1_cuda-0 and set RAG_R1_OLD_DRIVER=1"
    return 1
  fi
  [ -z "${FLASH_ATTN_WHEEL:-}" ] || return 0
  if ! nvcc=$(_rag_r1_nvcc); then
    _rag_r1_fail "no nvcc was found (CUDA_HOME=${CUDA_HOME:-}), and flash-attn must be compiled" \
      "install the CUDA toolkit $_rag_r1_cuda.0 and set CUDA_HOME, or give a prebuilt wheel: FLASH_ATTN_WHEEL=<path>"
    return 1
  fi
  release=$("$nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p')
  if [ "${release%%.*}" != "$_rag_r1_cuda" ]; then
    _rag_r1_fail "$nvcc is of CUDA ${release:-unknown}, but torch here is built for CUDA $_rag_r1_cuda" \
      "install the CUDA toolkit $_rag_r1_cuda.0 beside it and set CUDA_HOME to its folder"
    return 1
  fi
  if ! command -v "${CXX:-c++}" >/dev/null; then
    _rag_r1_fail "no C++ compiler was found (${CXX:-c++}), and flash-attn must be compiled" \
      "on Debian or Ubuntu: apt install build-essential"
    return 1
  fi
  if [ -z "${FLASH_ATTN_CUDA_ARCHS:-}" ] && _rag_r1_smi compute_cap | grep -q '^[1-7]\.'; then
    _rag_r1_fail "flash-attn needs GPUs of the Ampere generation or newer, and this machine has an older one" \
      "hide it: CUDA_VISIBLE_DEVICES=<the others> and FLASH_ATTN_CUDA_ARCHS=80"
    return 1
  fi
}

_rag_r1_nvcc() {
  local candidate
  if [ -n "${CUDA_HOME:-}" ]; then
    candidate="$CUDA_HOME/bin/nvcc"
  else
    candidate=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
  fi
  [ -x "$candidate" ] && echo "$candidate"
}

# Code for the base of a generation runs on all of it: 8.6 and 8.9 run what is compiled for 80.
_rag_r1_archs() {
  _rag_r1_smi compute_cap | sed -n 's/^\([0-9]*\)\.[0-9]*$/\10/p' | sort -nu | paste -sd ';' -
}

_rag_r1_jobs() {
  local cores memory limit
  cores=$(nproc 2>/dev/null || echo 1)
  memory=$(awk '/^MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo 2>/dev/null)
  limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null)
  case $limit in
    "" | *[!0-9]*) ;;
    *) if [ $((limit >> 30)) -lt "${memory:-9}" ]; then memory=$((limit >> 30)); fi ;;
  esac
  memory=$((${memory:-9} / 9))
  if [ "$memory" -lt "$cores" ]; then cores=$memory; fi
  if [ "$cores" -lt 1 ]; then cores=1; fi
  echo "$cores"
}

# Compiles flash-attn, in the version of $1/pyproject.toml, against the installed torch; or installs FLASH_ATTN_WHEEL.
_rag_r1_flash_attn() {
  local wanted archs nvcc
  wanted=$(sed -n 's/^ *"\(flash-attn==[0-9.]*\)",$/\1/p' "$1/pyproject.toml")
  if [ "${FLASH_ATTN_WHEEL:-}" = none ]; then
    _rag_r1_say "without flash-attn, as FLASH_ATTN_WHEEL=none asks for: train with platform=gpu_sdpa"
    return
  fi
  if [ -n "${FLASH_ATTN_WHEEL:-}" ]; then
    _rag_r1_pip --no-deps "$FLASH_ATTN_WHEEL"
    return
  fi
  nvcc=$(_rag_r1_nvcc) || return 1
  nvcc=$(readlink -f "$nvcc")
  archs=${FLASH_ATTN_CUDA_ARCHS:-$(_rag_r1_archs)}
  _rag_r1_say "compiling $wanted for ${archs:-all architectures} (10 minutes to two hours, depending on the number of cores)"
  CUDA_HOME=${CUDA_HOME:-${nvcc%/bin/nvcc}} FLASH_ATTN_CUDA_ARCHS=${archs:-80;90;100;120} \
    MAX_JOBS=${MAX_JOBS:-$(_rag_r1_jobs)} _rag_r1_pip --no-deps --no-build-isolation "$wanted"
}
