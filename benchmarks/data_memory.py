"""Measures memory and time of `rag-r1 data` on files of growing size.

    python benchmarks/data_memory.py --rows 1000 100000 1000000

The files are invented, in HotpotQA's layout (one JSON array, every row with its paragraphs). One row in a
hundred repeats the one before it. The validation set has a twentieth of the number of rows; in the first
twentieth of the training rows, one in two hundred has a question of the validation set. The table has the
size of both files, the time, and the peak resident memory of the process. This includes the libraries; a
first line with few rows shows how much these need.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rag_r1.runs.markdown import print_table

ROOT = Path(__file__).resolve().parents[1]
_WORDS = [
    "".join(random.Random(number).choices("aeioustrnlmdkp", k=3 + number % 7)) for number in range(20_000)
]


def question(number: int) -> str:
    """Return an invented question; different numbers give different questions."""
    draw = random.Random(f"question {number}")  # an integer seed would lose its sign
    return (
        f"Which {' '.join(draw.choices(_WORDS, k=9))} was {number} of {' '.join(draw.choices(_WORDS, k=3))}?"
    )


def row(number: int, question_number: int) -> dict[str, Any]:
    """Return row `number` in HotpotQA's layout, with the question of `question_number`."""
    paragraphs = [
        [f"Title {number + i}", [f"Sentence {i} of {number}. " + "filling " * 15] * 2] for i in range(2)
    ]
    return {
        "_id": f"{number:024x}",
        "question": question(question_number),
        "answer": f"answer {question_number}",
        "type": "bridge",
        "level": "hard",
        "supporting_facts": [[title, 0] for title, _ in paragraphs],
        "context": paragraphs,
    }


def train_rows(rows: int) -> Iterator[dict[str, Any]]:
    """Yield the training rows, with repetitions and questions of the validation set (negative numbers)."""
    for number in range(rows):
        question_number = number - 1 if number % 100 == 99 else number
        if number % 200 == 50 and number < rows // 20:
            question_number = -(number // 200) - 1
        yield row(number, question_number)


def write_array(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    """Write the rows as one JSON array, element by element."""
    with path.open("w", encoding="utf-8") as file:
        for number, row_ in enumerate(rows):
            file.write(("[" if number == 0 else ",\n") + json.dumps(row_))
        file.write("]\n")


def measure(rows: int, similarity: float, folder: Path) -> dict[str, float]:
    """Build a set of `rows` training rows, and return its figures.

    These are the `megabytes` of the files, the `seconds`, the `peak` of resident memory in MB, and the number
    of rows `written`. Raises SystemExit if the build fails.
    """
    train, validation, out = folder / "train.json", folder / "dev.json", folder / "out"
    write_array(train, train_rows(rows))
    write_array(validation, (row(number, -number - 1) for number in range(max(rows // 20, 1))))
    command = [sys.executable, "-m", "data_process.build", "--out", str(out), "--overlap", "drop"]
    command += ["--train", f"hotpotqa={train}", "--validation", f"hotpotqa={validation}"]
    command += ["--near-duplicates", str(similarity)]
    start = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    error = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)  # wait4 has reaped the process
    if status:
        raise SystemExit(f"error: {' '.join(command)} failed:\n{error}")
    summary = json.loads((out / "data_summary.json").read_text(encoding="utf-8"))
    return {
        "megabytes": (train.stat().st_size + validation.stat().st_size) / 1e6,
        "seconds": time.perf_counter() - start,
        "peak": usage.ru_maxrss / 1024,
        "written": sum(source["written"] for source in summary["sources"]),
    }


def main() -> None:
    """Run the benchmark and print a line of the table for each size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[1000, 100_000], help="of train (default 1000 100000)"
    )
    parser.add_argument("--near-duplicates", type=float, default=0.8, help="as in rag-r1 data (default 0.8)")
    args = parser.parse_args()

    def rows() -> Iterator[list[str]]:
        for count in args.rows:
            with tempfile.TemporaryDirectory() as folder:
                figures = measure(count, args.near_duplicates, Path(folder))
            size, seconds, peak = (f"{figures[name]:.0f}" for name in ("megabytes", "seconds", "peak"))
            yield [f"{count:,}", size, seconds, f"{figures['written']:,}", peak]

    print_table(["rows", "files, MB", "seconds", "rows written", "peak memory, MB"], rows(), "rrrrr")


if __name__ == "__main__":
    main()
