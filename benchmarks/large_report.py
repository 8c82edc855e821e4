"""The tables of benchmarks/large_preset.py, from the measurements that are there so far."""

from __future__ import annotations

import math
from pathlib import Path

from benchmarks.large_search import WAYS

MB = 1e6


def report(results: dict, index: Path, dimension: int, estimate: int) -> str:
    """Steps, sizes, search and server of a run; then what ``estimate`` passages would take."""
    run = results["run"]
    lines = [f"{run['passages']:,} passages of {dimension} dimensions, preset {run['preset']}"]
    others = [f"{name} {value}" for name, value in run.items() if name not in ("passages", "preset")]
    lines += ["", *([", ".join(others), ""] if others else [])]
    lines += ["| step | wall s | processor s | peak resident MB |", "|---|---:|---:|---:|"]
    steps = {name: found for name, found in results.items() if "wall" in found}
    for name, found in steps.items():
        if not found.get("measured", True):
            lines.append(f"| {name} (not measured: its result was there without a record) | | | |")
            continue
        state = "" if found["done"] else " (not finished)"
        lines.append(
            f"| {name}{state} | {found['wall']:.0f} | {found['cpu']:.0f} | {found['peak']:.0f} |"
        )
    if index.exists():
        lines += ["", "| | |", "|---|---:|"]
        sizes = {path.name: path.stat().st_size for path in sorted(index.iterdir()) if path.is_file()}
        lines += [f"| {name}, on disk | {size / MB:,.1f} MB |" for name, size in sizes.items()]
    lines += _search(results, run["passages"])
    if "merge" in results and results["merge"]["done"]:
        if all(found.get("measured", True) for found in steps.values()):
            lines += ["", *_estimate(steps, run, dimension, estimate)]
        else:
            lines += ["", f"What {estimate:,} passages would take is not told: a step was not measured."]
    return "\n".join(lines)


def milliseconds(found: dict) -> str:
    """p50 and p95."""
    return f"{found['p50']:.1f}, {found['p95']:.1f} ms"


def _times(found: dict) -> str:
    return f"{found['p50']:.1f} | {found['p95']:.1f}"


def _search(results: dict, passages: int) -> list[str]:
    lines: list[str] = []
    rows = []
    if cold := results.get("cold"):
        cells = cold["cells"]
        rows.append(f"| index, first questions of a cold process | {cells} | | {_times(cold['first'])} |")
        rows.append(f"| index, warm | {cells} | {cold['recall']:.2%} | {_times(cold['warm'])} |")
    if found := results.get("rows cold"):
        rows.append(f"| index, rows cold each time | {found['cells']} | | {_times(found['all'])} |")
    for found in results.get("cells", {}).get("cells", []):
        rows.append(f"| index | {found['cells']} | {found['recall']:.2%} | {_times(found)} |")
    if found := results.get("shards"):
        name = f"{found['shards']} shards, merged"
        rows.append(f"| {name} | | {found['recall']:.2%} | {_times(found['all'])} |")
    if rows:
        lines += ["", "| searched | cells | recall@10 | p50 ms | p95 ms |", "|---|---:|---:|---:|---:|"]
        lines += rows
        searches = {way: results[way] for way in WAYS if way in results}
        lines += ["", *(f"Limit of memory, {way}: {limit_held(found)}." for way, found in searches.items())]
    if cold:
        each = cold["resident"] / passages
        lines += ["", f"Memory of the index, mapped and searched: {cold['resident'] / MB:,.1f} MB, "]
        lines[-1] += f"{each:.1f} bytes a vector; opened in {cold['opened']:.2f} s."
    if served := results.get("serve"):
        lines += ["", "| server | |", "|---|---:|"]
        lines.append(f"| start to ready, files cold: wall | {served['ready']:.1f} s |")
        lines.append(f"| start to ready: processor | {served['processor']:.1f} s |")
        for state in ("first", "warm"):
            found = served[state]
            lines.append(
                f"| one question over HTTP, {state}: p50, p95 | {found['p50']:.0f}, {found['p95']:.0f} ms |"
            )
        lines.append(f"| resident, with encoder | {served['resident']:.0f} MB |")
        lines.append(f"| ... of which mapped index | {served['index resident']:.0f} MB |")
        lines.append(f"| limit of memory | {limit_held(served)} |")
    return lines


def limit_held(found: dict) -> str:
    """Whether a measurement was made under the limit of memory, and the most that was used."""
    if not found["limited"]:
        return "none: this machine gave no control group"
    peak = found["peak with page cache"]
    return "held" if peak is None else f"held; most used, page cache included: {peak / MB:,.0f} MB"


def _estimate(steps: dict, run: dict, dimension: int, passages: int) -> list[str]:
    """Steps in proportion to the passages. Of merging, adding grows with them too, and with the depth of the
    graph over the cells; training with cells times sample. How the two share its time is not measured, so
    there are two bounds."""
    from retrieval_server.indexing.faiss_build import sample_size
    from retrieval_server.indexing.plan import duration, needs_of, size
    from retrieval_server.indexing.presets import PRESETS, cells_for

    ratio = passages / run["passages"]
    cells = [cells_for(number) for number in (run["passages"], passages)]
    adding = ratio * math.log2(2 * cells[1]) / math.log2(2 * cells[0])
    few, many = (cell * sample_size(cell) for cell in cells)
    bounds = sorted((adding, many / few))

    def total(clock: str, merging: float) -> str:
        scaled = ((merging if name == "merge" else ratio) * found[clock] for name, found in steps.items())
        return duration(sum(scaled))

    needs = needs_of(PRESETS[run["preset"]], passages, dimension, encodes=False, with_encoder=False)
    return [
        f"{passages:,} passages, these steps at these rates: {total('wall', bounds[0])} to "
        f"{total('wall', bounds[1])} by the clock, {total('cpu', bounds[0])} to {total('cpu', bounds[1])} of "
        f"processor time; {size(needs.memory)} of memory for the index, {size(needs.build_memory)} for the "
        f"build, {size(3 * needs.disk)} of disk with parts and shards."
    ]
