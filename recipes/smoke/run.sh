#!/usr/bin/env bash
# The whole pipeline on real data, on this CPU, in a few minutes. See bash recipes/smoke/run.sh --help
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
export RAG_R1_PLATFORM=cpu
# In a clone the environment is made on first use; in an installation from a wheel, the active one is used.
if [ -f "$root/scripts/setup_env.sh" ]; then
  # shellcheck source=scripts/setup_env.sh
  source "$root/scripts/setup_env.sh" --run
fi
exec python "$here/run.py" "$@"
