#!/usr/bin/env bash
# Everything that must hold: style, the rooms' boundaries, then the tests, in three tiers.
usage() {
  cat <<'EOF'
Usage: bash tests/run.sh [unit|full] [arguments of pytest]

  bash tests/run.sh                  style, boundaries, unit tests, slow tests, one real training of each kind (15 to 20 minutes)
  bash tests/run.sh unit             style, boundaries and unit tests only (a minute and a half)
  bash tests/run.sh full             also the trainings that are killed and resumed, whole corpora, larger property tests
  bash tests/run.sh tests/agent -x   only what the arguments of pytest name

On first use it makes the environment (scripts/setup_env.sh). The times are those of two cores. The trainings run beside
the other tests, in a process of their own. The last line counts all tests of the run.
EOF
}

tier=default
case "${1:-}" in
  -h | --help | help) usage && exit 0 ;;
  unit | full) tier=$1 && shift ;;
  "") ;;
  *) tier=some ;;
esac

set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
# shellcheck source=scripts/setup_env.sh
source scripts/setup_env.sh --dev || exit 1

failed=()
check() {
  printf '== %s\n' "$*"
  "$@" || failed+=("$*")
}

check ruff check .
check lint-imports

# The rest needs no network: models and data come with the project or from ../shared/data ($RAG_R1_DATA).
# Threads that wait for work leave the cores to the process beside them.
export HF_HUB_OFFLINE=1 RAY_USAGE_STATS_ENABLED=0 OMP_WAIT_POLICY=passive
[ "${#failed[@]}" -eq 0 ] || printf '== failed before the tests: %s\n' "${failed[*]}"

results=$(mktemp -d "${TMPDIR:-/tmp}/rag-r1-tests.XXXXXX") || exit 1
children=()
# shellcheck disable=SC2317
finish() {
  [ "${#children[@]}" -eq 0 ] || kill "${children[@]}" 2>/dev/null
  rm -rf "$results"
}
trap finish EXIT
trap 'exit 130' INT TERM

# tests NAME [arguments of pytest]: its status 5, no test was chosen, is for the tally to judge.
tests() {
  local name=$1 && shift
  printf '== pytest %s\n' "$*"
  python -m pytest --junitxml="$results/$name.xml" "$@"
  local status=$?
  [ "$status" -eq 5 ] || echo "$status" > "$results/$name.status"
}
[ "$tier" != full ] || export HYPOTHESIS_PROFILE=full

case "$tier" in
  some) tests some "$@" ;;
  unit) tests unit -n 2 --dist loadfile -m "not slow and not e2e and not full" "$@" ;;
  *)
    left_out=""
    [ "$tier" = full ] || left_out=" and not full"
    # One training after the other; what they print comes when the other tests are through. These are one process
    # as well, and nicer than Ray makes its workers (15): the trainings are the longer of the two, and Ray gives up
    # on a start that takes longer than 30 seconds.
    tests trainings -m "e2e$left_out" "$@" > "$results/trainings.log" 2>&1 &
    children=($!)
    renice -n 19 -p $$ >/dev/null 2>&1
    tests others -m "not e2e$left_out" "$@"
    printf '== the trainings run on; what they have printed so far is in %s\n' "$results/trainings.log"
    wait "${children[0]}"
    children=()
    cat "$results/trainings.log"
    ;;
esac
python tests/tally.py "$results"
status=$?
[ "$status" -eq 0 ] && [ "${#failed[@]}" -eq 0 ]
