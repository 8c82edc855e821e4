"""The provenance of a measurement, and the refusal to mix two machines or two settings in one folder.

GPUs, driver, processor, versions and the plan's settings must be those with which OUT was begun. The commit
may change, so that a phase that failed can be mended while a GPU is there: each cell names its own.
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

_COMPARED = ("platform", "processor", "cores", "gpus")


def provenance_of(out: Path) -> dict[str, Any]:
    """OUT/provenance.json; {} before the first start. Raises RunError."""
    return read_marker(out / PROVENANCE, "choose another --out")


def as_begun(plan: Plan) -> Plan:
    """The plan with the sizes with which its folder was begun, for a report on another machine."""
    settings = provenance_of(plan.out).get("settings", {})
    return replace(plan, **{key: settings[key] for key in ("miniature", "gpu_bytes") if key in settings})


def begin(plan: Plan) -> None:
    """Write OUT/provenance.json at the first start, and compare with it at the others. Raises RunError."""
    machine = machine_facts()
    now = json_roundtrip(
        {
            "machine": {name: machine[name] for name in _COMPARED},
            "driver": driver_version(),
            "versions": package_versions(),
            "miniature": plan.miniature,
            "gpu_bytes": plan.gpu_bytes,
            "random_weights": plan.random_weights,
        }
    )
    if before := provenance_of(plan.out).get("settings"):
        refuse_changes(plan.out, flatten(before), flatten(now))
        return
    started = datetime.now(timezone.utc).isoformat("T", "seconds")
    write_provenance(
        plan.out, {"settings": now, "machine": machine, "commit": commit_facts(), "started": started}
    )
