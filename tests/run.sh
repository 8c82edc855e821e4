#!/usr/bin/env bash
# All checks: style, import boundaries between packages, then the tests, in three tiers.
usage() {
  cat <<'EOF'
Usage: bash tests/run.sh [unit|full] [pytest options]
       bash tests/run.sh PATHS [pytest options]

  bash tests/run.sh                  style, boundaries, unit tests, slow tests, one real training of each kind (a quarter of an hour)
  bash tests/run.sh unit             style, boundaries and unit tests only (a minute and a half)
  bash tests/run.sh full             also trainings that are killed and resumed, whole corpora, larger property tests (an hour)
  bash tests/run.sh tests/agent -x   only what the pytest arguments select

The environment is created on first use (scripts/setup_env.sh). Times are for two cores. The trainings run in a separate
process, in parallel with the other tests. The last line counts all tests of the run.
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
# Idle OpenMP threads sleep, so that they leave the cores to the other process.
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

# tests NAME [pytest arguments]: status 5 (no test was selected) is left to the tally.
tests() {
  local name=$1 && shift
  printf '== pytest %s\n' "$*"
  python -m pytest --junitxml="$results/$name.xml" "$@"
  local status=$?
  [ "$status" -eq 5 ] || echo "$status" > "$results/$name.status"
}
case "$tier" in
  unit) export HYPOTHESIS_PROFILE=quick ;;
  full) export HYPOTHESIS_PROFILE=full ;;
esac

# Two processes. Those tests that do not need veRL are run in one of them, so that only the other imports it.
light=() without=()
for name in agent data_process docs protocols retrieval_server rewards scripts tools; do
  [ ! -d "tests/$name" ] || light+=("tests/$name") without+=("--ignore=tests/$name")
done

case "$tier" in
  some) tests some "$@" ;;
  unit)
    if [ "${#light[@]}" -gt 0 ]; then
      tests light -m "not slow and not e2e and not full" "$@" "${light[@]}" > "$results/light.log" 2>&1 &
      children=($!)
    fi
    tests unit -m "not slow and not e2e and not full" "$@" "${without[@]}"
    if [ "${#light[@]}" -gt 0 ]; then
      wait "${children[0]}"
      children=()
      cat "$results/light.log"
    fi
    ;;
  *)
    left_out=""
    [ "$tier" = full ] || left_out=" and not full"
    light_tests() {
      [ "${#light[@]}" -eq 0 ] || tests light -m "not e2e$left_out" "$@" "${light[@]}"
    }
    # Trainings run one after the other; their output is shown when the other tests have finished. The tests without
    # veRL follow in the process that ends first: the trainings of `full` take longer than all other tests. Those have a
    # higher niceness than the workers of Ray (15), which gives up on a start that takes more than 30 seconds.
    {
      tests trainings -m "e2e$left_out" "$@"
      [ "$tier" = full ] || light_tests "$@"
    } > "$results/trainings.log" 2>&1 &
    children=($!)
    renice -n 19 -p $$ >/dev/null 2>&1
    tests others -m "not e2e$left_out" "$@" "${without[@]}"
    [ "$tier" = default ] || light_tests "$@"
    printf '== the first process is still running; its output so far is in %s\n' "$results/trainings.log"
    wait "${children[0]}"
    children=()
    cat "$results/trainings.log"
    ;;
esac
python tests/tally.py "$results"
status=$?
[ "$status" -eq 0 ] && [ "${#failed[@]}" -eq 0 ]
