"""A training that only pretends: it writes metrics and checkpoints as veRL does, step after step, and goes
wrong as it is told to. What it knows of earlier attempts is what stands in its folder.

    python pretended_training.py FOLDER METRICS PLAN(JSON) key=value ...

The plan: `steps`; `save` (every so many steps); and faults, each with the number of attempts that have it
(`in`): `collapse` {at, in}: right answers vanish; `crash` {at, in, status}; `hang` {at, in}, and
`long_update` {at, in}, after the step's batch is complete; `long_tracker` {at, in}, while it is written.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from rag_r1.runs.rollout_metrics import rollouts_file

TRACKER = "latest_checkpointed_iteration.txt"
SAME = {"search/searches": 1.5}


def main() -> None:
    folder, metrics, plan = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    starts = folder / "starts.txt"
    with starts.open("a") as file:
        print(*sys.argv[4:], file=file)
    attempt = len(starts.read_text().splitlines())
    tracker = folder / TRACKER
    first = int(tracker.read_text()) if tracker.exists() else 0

    def has(fault: str, step: int) -> bool:
        planned = plan.get(fault)
        return planned is not None and step >= planned["at"] and attempt <= planned["in"]

    with metrics.open("w") as lines, rollouts_file(metrics).open("w") as batches:
        for step in range(first + 1, plan["steps"] + 1):
            if has("hang", step):
                time.sleep(600)
            if has("crash", step):
                sys.exit(plan["crash"]["status"])
            right = 0.0 if has("collapse", step) else min(0.9, 0.3 + 0.1 * step)
            line = json.dumps({"step": step, "data": {**SAME, "search/right": right, "search/score": right}})
            batches.write(line + "\n")
            batches.flush()
            if has("long_update", step):
                time.sleep(600)
            if step % plan["save"] == 0:
                checkpoint = folder / f"global_step_{step}"
                (checkpoint / "actor").mkdir(parents=True, exist_ok=True)
                (checkpoint / "actor" / "weights").write_text(f"attempt {attempt}, step {step}")
                (checkpoint / "data.pt").write_text(f"step {step}")
                if has("long_tracker", step):
                    tracker.write_text("")  # as veRL's: emptied after the checkpoint, then written
                    time.sleep(600)
                tracker.write_text(str(step))
            lines.write(line + "\n")
            lines.flush()
            time.sleep(plan.get("wait", 0.05))


if __name__ == "__main__":
    main()
