#!/usr/bin/env bash
# The whole pipeline on real data, on this CPU, in a few minutes. See bash recipes/smoke/run.sh --help
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export RAG_R1_PLATFORM=cpu
# shellcheck source=scripts/setup_env.sh
source "$root/scripts/setup_env.sh" --run
exec python "$root/recipes/smoke/run.py" "$@"
