"""Writes the tables of benchmarks/large_preset.py from the measurements so far.

`report` gets the contents of results.json: the settings under `run`, the figures of each step by its name,
and those of the searches and of the server. Measurements that are missing are left out.
"""

from __future__ import annotations

import math
from pathlib import Path

from benchmarks.large_search import COLD, WAYS
from rag_r1.runs.markdown import Page

MB = 1e6
#: State of the page cache -> label: neither index nor rows are in memory; only the index is; both are.
STATES = {
    "first": f"first {COLD} of a cold process",
    "new": "the others, index read ahead",
    "again": "all a second time",
}


def report(results: dict, index: Path, dimension: int, estimate: int) -> str:
    """Return the report on a run: its steps, sizes, searches and server, and an estimate.

    The estimate is for `estimate` passages, and is made when the index is merged and all steps were measured.
    """
    run = results["run"]
    page = Page().text(f"{run['passages']:,} passages of {dimension} dimensions, preset {run['preset']}")
    if others := [f"{name} {value}" for name, value in run.items() if name not in ("passages", "preset")]:
        page.text(", ".join(others))
    steps = {name: result for name, result in results.items() if "wall" in result}
    rows = [_step(name, result) for name, result in steps.items()]
    page.table(["step", "wall s", "processor s", "peak resident MB"], rows)
    if index.exists():
        sizes = {path.name: path.stat().st_size for path in sorted(index.iterdir()) if path.is_file()}
        page.table(["", ""], [[f"{name}, on disk", f"{size / MB:,.1f} MB"] for name, size in sizes.items()])
    _add_searches(page, results, run["passages"])
    if served := results.get("serve"):
        _add_server(page, served)
    if "merge" in results and results["merge"]["done"]:
        if all(result.get("measured", True) for result in steps.values()):
            page.text(_estimate(steps, run, dimension, estimate))
        else:
            page.text(f"There is no estimate for {estimate:,} passages, since a step was not measured.")
    return str(page)


def _step(name: str, result: dict) -> list[str]:
    """Return the row of a step; it has no figures if the step was not measured."""
    if not result.get("measured", True):
        return [f"{name} (not measured: its result was there without a record)", "", "", ""]
    state = "" if result["done"] else " (not finished)"
    return [name + state, *(f"{result[figure]:.0f}" for figure in ("wall", "cpu", "peak"))]


def milliseconds(result: dict) -> str:
    """Return the p50 and the p95 in milliseconds, as a text."""
    return f"{result['p50']:.1f}, {result['p95']:.1f} ms"


def _times(result: dict) -> list[str]:
    return [f"{result['p50']:.1f}", f"{result['p95']:.1f}"]


def _settings(result: dict) -> list[str]:
    """Return the numbers of searched cells and of candidates; older records lack the latter."""
    return [str(result["cells"]), str(result.get("candidates", ""))]


def _add_searches(page: Page, results: dict, passages: int) -> None:
    """Add the table of searches, with a row for each way and state of the page cache, and the memory."""
    rows = []
    if cold := results.get("cold"):
        for state, name in STATES.items():
            if state in cold:
                cells = [f"{cold['recall']:.2%}", *_times(cold[state])]
                rows.append([f"index, {name}", *_settings(cold), *cells])
    if dropped := results.get("rows cold"):
        name = "index, rows dropped from the page cache each time"
        rows.append([name, *_settings(dropped), "", *_times(dropped["all"])])
    for way in ("cells", "candidates"):
        for search in results.get(way, {}).get(way, []):
            rows.append(["index", *_settings(search), f"{search['recall']:.2%}", *_times(search)])
    if shards := results.get("shards"):
        name = f"{shards['shards']} shards, merged"
        rows.append([name, "", "", f"{shards['recall']:.2%}", *_times(shards["all"])])
    if rows:
        page.table(["searched", "cells", "candidates", "recall@10", "p50 ms", "p95 ms"], rows)
        searches = {way: results[way] for way in WAYS if way in results}
        limits = [f"Limit of memory, {way}: {limit_held(search)}." for way, search in searches.items()]
        page.text("\n".join(limits))
    if cold:
        each = cold["resident"] / passages
        page.text(
            f"Memory of the index, mapped and searched: {cold['resident'] / MB:,.1f} MB, {each:.1f} bytes a "
            f"vector; opened in {cold['opened']:.2f} s."
        )


def _add_server(page: Page, served: dict) -> None:
    """Add the table of the server, whose questions were sent one by one."""
    named = {f"one question, {name}": state for state, name in STATES.items() if state in served}
    rows = {
        "start to ready, files cold: wall": f"{served['ready']:.1f} s",
        "start to ready: processor": f"{served['processor']:.1f} s",
        **{f"{name}: p50, p95": milliseconds(served[state]) for name, state in named.items()},
        "resident, with encoder": f"{served['resident']:.0f} MB",
        "... of which mapped index": f"{served['index resident']:.0f} MB",
        "limit of memory": limit_held(served),
    }
    page.table(["server", ""], rows.items())


def limit_held(result: dict) -> str:
    """Say whether a measurement was made under the limit of memory, and how much was used at most."""
    if not result["limited"]:
        return "none: this machine gave no control group"
    peak = result["peak with page cache"]
    return "held" if peak is None else f"held; most used, page cache included: {peak / MB:,.0f} MB"


def _estimate(steps: dict, run: dict, dimension: int, passages: int) -> str:
    """Estimate the time and the memory for another number of passages.

    Steps grow in proportion to the passages. Merging consists of adding, which also grows with the depth of
    the graph over the cells, and of training, which grows with cells times sample. Their shares are not
    measured, so the result has two bounds.
    """
    from retrieval_server.indexing.faiss_build import sample_size
    from retrieval_server.indexing.presets import PRESETS, cells_for
    from retrieval_server.indexing.resource_estimate import duration_text, estimate_bytes, size_text

    ratio = passages / run["passages"]
    cells, more_cells = cells_for(run["passages"]), cells_for(passages)
    adding = ratio * math.log2(2 * more_cells) / math.log2(2 * cells)
    training = more_cells * sample_size(more_cells) / (cells * sample_size(cells))
    bounds = sorted((adding, training))

    def total(clock: str, merging: float) -> str:
        scaled = ((merging if name == "merge" else ratio) * result[clock] for name, result in steps.items())
        return duration_text(sum(scaled))

    needs = estimate_bytes(PRESETS[run["preset"]], passages, dimension, encodes=False, with_encoder=False)
    return (
        f"{passages:,} passages, these steps at these rates: {total('wall', bounds[0])} to "
        f"{total('wall', bounds[1])} by the clock, {total('cpu', bounds[0])} to {total('cpu', bounds[1])} of "
        f"processor time; {size_text(needs.memory_bytes)} of memory for the index, "
        f"{size_text(needs.build_memory_bytes)} for the "
        f"build, {size_text(3 * needs.disk_bytes)} of disk with parts and shards."
    )
