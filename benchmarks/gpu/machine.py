"""Records the provenance of measurements, and refuses to mix two machines or two settings in one folder.

GPUs, driver, processor and versions must be those with which the folder OUT was created, and so must the
plan's sizes and whether its models have random weights. The commit may change, so that a phase that failed
can be repaired while the GPU is available; each cell records the commit that measured it. The folders of
models and data are not compared: they must have the same contents.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.gpu.plan import Plan
from rag_r1.rollouts.provenance_facts import commit_facts, machine_facts, package_versions
from rag_r1.runs.folder import PROVENANCE, write_provenance
from rag_r1.runs.settings import flatten, json_roundtrip, read_marker, refuse_changes
from rag_r1.system.gpu_driver import driver_version

#: The facts of the machine that must not change.
_COMPARED = ("platform", "processor", "cores", "gpus")


def provenance_of(out: Path) -> dict[str, Any]:
    """Read OUT/provenance.json, or return {} if there is none. Raises RunError if it cannot be read."""
    return read_marker(out / PROVENANCE, "choose another --out")


def recorded_plan(plan: Plan) -> Plan:
    """Return the plan with the sizes recorded when its folder was created.

    With them a report can be written on another machine.
    """
    settings = provenance_of(plan.out).get("settings", {})
    return replace(plan, **{key: settings[key] for key in ("miniature", "gpu_bytes") if key in settings})


def begin(plan: Plan) -> None:
    """Write OUT/provenance.json if there is none, and otherwise compare machine and settings with it.

    Raises RunError if they differ.
    """
    machine = machine_facts()
    current = json_roundtrip(
        {
            "machine": {name: machine[name] for name in _COMPARED},
            "driver": driver_version(),
            "versions": package_versions(),
            "miniature": plan.miniature,
            "gpu_bytes": plan.gpu_bytes,
            "random_weights": plan.random_weights,
        }
    )
    if recorded := provenance_of(plan.out).get("settings"):
        refuse_changes(plan.out, flatten(recorded), flatten(current))
        return
    started = datetime.now(timezone.utc).isoformat("T", "seconds")
    write_provenance(
        plan.out, {"settings": current, "machine": machine, "commit": commit_facts(), "started": started}
    )
