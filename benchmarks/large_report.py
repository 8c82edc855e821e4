"""The tables of benchmarks/large_preset.py, from the measurements that are there so far."""

from __future__ import annotations

from pathlib import Path

MB = 1e6


def report(results: dict, index: Path, dimension: int, estimate: int) -> str:
    """Steps, sizes, search and server of a run; then what ``estimate`` passages would take."""
    run = results["run"]
    lines = [f"{run['passages']:,} passages of {dimension} dimensions, preset {run['preset']}", ""]
    lines += ["| step | wall s | processor s | peak resident MB |", "|---|---:|---:|---:|"]
    steps = {name: found for name, found in results.items() if "wall" in found}
    for name, found in steps.items():
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
        lines += ["", *_estimate(results, steps, dimension, estimate)]
    return "\n".join(lines)


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
        if served["peak with page cache"]:
            peak = served["peak with page cache"] / MB
            lines.append(f"| most used under the limit, page cache included | {peak:,.0f} MB |")
        else:
            lines.append("| limit of memory | none: this machine gave no control group |")
    return lines


def _estimate(results: dict, steps: dict, dimension: int, passages: int) -> list[str]:
    """Steps in proportion; merging in the proportion of the build's own estimates (indexing/plan.py)."""
    from retrieval_server.indexing.plan import duration, measured, needs_of, size
    from retrieval_server.indexing.presets import PRESETS

    run = results["run"]
    preset = PRESETS[run["preset"]]

    def told(number: int) -> float:
        return measured(preset, range(number), dimension, None, 64, encodes=False).index_s

    ratio = passages / run["passages"]
    longer = told(passages) / max(told(run["passages"]), 1e-9)

    def scaled(clock: str) -> dict[str, float]:
        return {name: (longer if name == "merge" else ratio) * found[clock] for name, found in steps.items()}

    wall = scaled("wall")
    needs = needs_of(preset, passages, dimension, encodes=False, with_encoder=False)
    return [
        f"{passages:,} passages, from these rates: about {duration(sum(wall.values()))} "
        f"({', '.join(f'{name} {duration(seconds)}' for name, seconds in wall.items())}), of which "
        f"{duration(sum(scaled('cpu').values()))} of processor time; "
        f"{size(needs.memory)} of memory for the index, {size(needs.build_memory)} for the build, "
        f"{size(3 * needs.disk)} of disk with parts and shards."
    ]
