#!/usr/bin/env bash
# All checks: style, import boundaries between packages, then the tests, in four tiers.
usage() {
  cat <<'EOF'
Usage: bash tests/run.sh [unit|full|nightly] [pytest options]
       bash tests/run.sh PATHS [pytest options]

  bash tests/run.sh                  style, boundaries, unit tests, slow tests, one real training of each kind (a quarter of an hour)
  bash tests/run.sh unit             style, boundaries and unit tests only (a minute and a half)
  bash tests/run.sh full             also trainings that are killed and resumed, whole corpora, larger property tests (an hour)
  bash tests/run.sh nightly          also what takes longer than that: complete installations, whole pipelines
  bash tests/run.sh tests/agent -x   only what the pytest arguments select

The environment is created on first use (scripts/setup_env.sh). Times are for two cores: two processes share the tests,
and one of them begins with the trainings. The last lines name the tests that failed and count all tests of the run.
EOF
}

tier=default
case "${1:-}" in
  -h | --help | help) usage && exit 0 ;;
  unit | full | nightly) tier=$1 && shift ;;
  "") ;;
  *) tier=some ;;
esac

set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
if [ "$tier" = some ] && [[ $1 != -* && ! -e ${1%%::*} ]]; then
  echo "error: '$1' is neither a tier nor a path; see bash tests/run.sh --help" >&2
  exit 2
fi
# shellcheck source=scripts/setup_env.sh
source scripts/setup_env.sh --dev || exit 1

failed=()
check() {
  printf '== %s\n' "$*"
  "$@" || failed+=("$*")
}

# In this process, while the other one already tests.
style() {
  check ruff check .
  check ruff format --check .
  check lint-imports
  [ "${#failed[@]}" -eq 0 ] || printf '== style, failed: %s\n' "${failed[*]}"
}

# The tests need no network: models and data come with the project or from ../shared/data ($RAG_R1_DATA).
# Idle OpenMP threads sleep, so that they leave the cores to the other process.
export HF_HUB_OFFLINE=1 RAY_USAGE_STATS_ENABLED=0 OMP_WAIT_POLICY=passive
# Each module is compiled once, not by every process that a test starts.
unset PYTHONDONTWRITEBYTECODE

# With TEST_RESULTS=DIR, the JUnit files of the processes are there afterwards.
results=$(mktemp -d "${TMPDIR:-/tmp}/rag-r1-tests.XXXXXX") && mkdir -p "${TEST_RESULTS:-$results}" || exit 1
children=()
# shellcheck disable=SC2317
finish() {
  [ "${#children[@]}" -eq 0 ] || kill "${children[@]}" 2>/dev/null
  [ -z "${TEST_RESULTS:-}" ] || cp "$results"/*.xml "$TEST_RESULTS"
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
  full | nightly) export HYPOTHESIS_PROFILE=$tier ;;
esac

# share NAME front|back [pytest arguments]: the shares of tests that this process gets (tests/shares.py). It leaves a
# status of its own only if it was cut off.
share() {
  local name=$1 end=$2 && shift 2
  printf '== shares of the tests, from the %s: pytest %s\n' "$end" "$*"
  python tests/shares.py "$results" "$name" "$end" "$@"
  local status=$?
  [ "$status" -eq 0 ] || echo "$status" > "$results/$name.status"
}
mkdir "$results/taken"

# Two processes share the tests: one goes through the list from the front, the other from the back, until they meet
# (tests/shares.py, also on why this is not pytest-xdist). The output of the second is shown when the first has finished.
case "$tier" in
  some)
    style
    tests some "$@"
    ;;
  unit)
    chosen="not slow and not e2e and not full and not nightly"
    share second back -m "$chosen" "$@" > "$results/second.log" 2>&1 &
    children=($!)
    style
    share first front -m "$chosen" "$@"
    ;;
  *)
    case "$tier" in
      nightly) left_out="" ;;
      full) left_out=" and not nightly" ;;
      *) left_out=" and not full and not nightly" ;;
    esac
    # Trainings run one after the other, before this process takes other tests. Only the files that name their marker are
    # collected. All other tests have a higher niceness than the workers of Ray (15), which gives up on a start that
    # takes more than 30 seconds.
    {
      mapfile -t trainings < <(grep -rlw --include='test_*.py' e2e tests)
      [ "${#trainings[@]}" -eq 0 ] || tests trainings -m "e2e$left_out" "$@" "${trainings[@]}"
      share second back -m "not e2e$left_out" "$@"
    } > "$results/second.log" 2>&1 &
    children=($!)
    renice -n 19 -p $$ >/dev/null 2>&1
    style
    share first front -m "not e2e$left_out" "$@"
    ;;
esac
if [ "${#children[@]}" -gt 0 ]; then
  printf '== the second process is still running; its output so far is in %s\n' "$results/second.log"
  wait "${children[0]}"
  children=()
  cat "$results/second.log"
fi
python tests/tally.py "$results"
status=$?
[ "$status" -eq 0 ] && [ "${#failed[@]}" -eq 0 ]
