#!/usr/bin/env bash
# Ray on one of several machines. Run it in the project's root, with the same environment everywhere.
#   bash docs/guides/ray_node.sh head              the first machine; prints the address for the others
#   bash docs/guides/ray_node.sh worker ADDRESS    another machine joins the cluster
#   bash docs/guides/ray_node.sh wait NODES        on the first: returns when that many machines have joined
#   bash docs/guides/ray_node.sh stop              stops Ray on this machine
# VENV: the Python environment (default .venv). PORT: port on the first machine (default 6379). BLOCK=1: run until Ray ends.
set -euo pipefail

usage() { sed -n '2,7s/^# //p' "${BASH_SOURCE[0]}"; }
fail() { printf 'error: %s\n' "$1" >&2; usage >&2; exit 2; }

venv=${VENV:-.venv}
port=${PORT:-6379}
if [ -f "$venv/bin/activate" ]; then
  # shellcheck source=/dev/null
  source "$venv/bin/activate"
fi
export RAY_USAGE_STATS_ENABLED=0

case ${1:-} in
  head)
    address=${2:-$(hostname -I | awk '{print $1}')}
    # The dashboard can run commands on the cluster: keep it on this machine.
    echo "on the other machines: bash docs/guides/ray_node.sh worker $address"
    ray start --head --node-ip-address="$address" --port="$port" --dashboard-host=127.0.0.1 ${BLOCK:+--block}
    ;;
  worker)
    [ -n "${2:-}" ] || fail "worker needs the address of the first machine"
    ray start --address="$2:$port" ${BLOCK:+--block}
    ;;
  wait)
    [ -n "${2:-}" ] || fail "wait needs the number of machines"
    python - "$2" <<'PYTHON'
import sys
import time

import ray

wanted = int(sys.argv[1])
ray.init(address="auto", log_to_driver=False)
while (there := sum(node["Alive"] for node in ray.nodes())) < wanted:
    print(f"{there} of {wanted} machines", flush=True)
    time.sleep(5)
print(f"{there} machines, {ray.cluster_resources().get('GPU', 0):.0f} GPUs")
PYTHON
    ;;
  stop) ray stop ;;
  -h | --help) usage ;;
  *) fail "give a command: head, worker, wait or stop" ;;
esac
