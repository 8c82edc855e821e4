"""Runs the demo with several seeds, to show how much it learns and how long it takes.

    python benchmarks/demo_seeds.py --recipes grpo ppo_sq ppo_mq --random 3

The benchmark runs `python -m rag_r1.demo.run` for each recipe and seed, one after another (veRL's actor names
are global to a Ray cluster), and prints a Markdown table. A run that is already in the output folder is not
repeated, so an interrupted benchmark resumes where it stopped. The seed determines the world, its questions
and their order. Published figures use random seeds (`--random`, saved in `seeds.json` of the output folder),
since seeds that were used for tuning would flatter the result.
"""

from __future__ import annotations

import argparse
import json
import platform
import secrets
import subprocess
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from rag_r1.runs.markdown import print_table

ROOT = Path(__file__).resolve().parents[1]


def run(recipe: str, seed: int, folder: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the results of one demo run, from its folder if it is finished.

    Raises CalledProcessError if the run fails.
    """
    out = folder / f"{recipe}-seed{seed}"
    finished = out / "results.json"
    if not finished.exists():
        command = [sys.executable, "-m", "rag_r1.demo.run", "--recipe", recipe, "--seed", str(seed)]
        subprocess.run([*command, "--out", str(out), *overrides], check=True, cwd=ROOT)
    return json.loads(finished.read_text())


def draw_seeds(count: int, folder: Path) -> list[int]:
    """Return `count` random seeds, beginning with those already saved in the folder, and save them."""
    saved = folder / "seeds.json"
    seeds = json.loads(saved.read_text()) if saved.exists() else []
    while len(seeds) < count:
        seed = secrets.randbelow(1_000_000)
        if seed not in seeds:
            seeds.append(seed)
    folder.mkdir(parents=True, exist_ok=True)
    saved.write_text(json.dumps(seeds) + "\n")
    return seeds[:count]


def row(results: dict[str, Any]) -> list[str]:
    """Return the cells of a run's row in the table."""
    steps = sorted(results["held_out"], key=int)
    before, after = (results["held_out"][step] for step in (steps[0], steps[-1]))
    kinds = [key for key in before if key.startswith("EM ")]
    cells = [f"{before[kind]:.2f} → {after[kind]:.2f}" for kind in kinds]
    rise = after["EM all"] - before["EM all"]
    habits = [f"{before[key]:.1f} → {after[key]:.1f}" for key in ("searches a question", "turns a question")]
    minutes = f"{results['seconds'] / 60:.1f}"
    return [results["recipe"], str(results["seed"]), *cells, f"{rise:+.2f}", *habits, steps[-1], minutes]


def header(results: dict[str, Any]) -> list[str]:
    """Return the names of the table's columns; all runs have the same."""
    kinds = [key for key in next(iter(results["held_out"].values())) if key.startswith("EM ")]
    return ["recipe", "seed", *kinds, "rise", "searches", "turns", "steps", "minutes"]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the demo with each recipe and seed, and print the table of results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipes", nargs="+", default=["grpo", "ppo_sq", "ppo_mq"], help="demo recipes")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="(default 0 1 2)")
    choice.add_argument("--random", type=int, metavar="COUNT", help="draw this many seeds at random instead")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "outputs" / "demo_seeds", help="output folder of the runs"
    )
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="key=value", help="Hydra overrides of every run"
    )
    args = parser.parse_args(argv)
    if args.random is not None and args.random < 1:
        parser.error("--random must be 1 or more")
    seeds = args.seeds if args.random is None else draw_seeds(args.random, args.out)
    runs = [run(recipe, seed, args.out, args.set) for recipe in args.recipes for seed in seeds]
    print(f"\n{platform.machine()}, {platform.processor() or 'CPU'}, {date.today()}\n")
    head = header(runs[0])
    print_table(head, map(row, runs), "l" * len(head))


if __name__ == "__main__":
    main()
