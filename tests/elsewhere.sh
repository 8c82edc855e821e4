#!/usr/bin/env bash
# The tests as on another machine: with the instructions of another processor, or started by another parent.
usage() {
  cat <<'EOF'
Usage: bash tests/elsewhere.sh processor|parent|both COMMAND...

  bash tests/elsewhere.sh both python -m pytest -m "not slow and not e2e and not full and not nightly"

processor   AVX2 and no AVX-512, for the libraries that have a switch: torch, MKL, NumPy, OpenBLAS, FAISS
parent      a background job of a script: SIGINT and SIGHUP ignored, stdin closed, no terminal, 1,024 open files, one
            core, umask 077, a home that cannot be written, a TMPDIR with a space, LANG=C, another time zone, CI=true,
            40 columns, every warning shown
EOF
}

case "${1:-}" in
  processor | parent | both) which=$1 && shift ;;
  *) usage && exit 2 ;;
esac

if [ "$which" != parent ]; then
  export ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 OPENBLAS_CORETYPE=Haswell FAISS_SIMD_LEVEL=AVX2
  export NPY_DISABLE_CPU_FEATURES="AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR"
fi
[ "$which" != processor ] || exec "$@"

temporary=$(mktemp -d "${TMPDIR:-/tmp}/with a space.XXXXXX") || exit 1
trap 'chmod -R u+w "$temporary"; rm -rf "$temporary"' EXIT
trap '' INT HUP  # from here on children ignore them, too
umask 077
ulimit -n 1024
unset TERM
# In /proc not even root makes a folder.
export HOME=/proc/no-home TMPDIR=$temporary LANG=C LC_ALL=C TZ=Pacific/Chatham CI=true COLUMNS=40 PYTHONWARNINGS=default
core=$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')
taskset -c "$core" "$@" <&-
