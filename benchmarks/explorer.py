"""Measures `rag-r1 view` on a training with many trajectories.

    python benchmarks/explorer.py --work outputs/explorer                # 100,000 trajectories, 1.8 GB
    python benchmarks/explorer.py --work outputs/explorer --records 2000

The benchmark writes the records of an invented GRPO training: groups of five trajectories, each with several
searches that return five of the question's thirty passages, about 18 kB a record. It starts the command as a
user would, first without a cache and then with one. Over HTTP it measures wall-clock and processor time for
reading the records, the first page, filters by columns, free text, a query that the client abandons, and the
time until an appended record appears, as well as the peak memory of the process. It prints JSON, and removes
the records and the cache unless --keep is given. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.measured_steps import processor_seconds  # noqa: E402
from rag_r1.agent import Trajectory, Turn  # noqa: E402
from rag_r1.agent.records import TrajectoryDump  # noqa: E402
from rag_r1.protocols import Document  # noqa: E402

#: Trajectories of a question, and of a step.
_GROUP, _STEP = 5, 500
#: Number of base passages, words of each, and different words.
_PASSAGES, _WORDS, _VOCABULARY = 20_000, 120, 30_000
#: Number of passages that belong to one question only.
_OWN_PASSAGES = 30
_SYLLABLES = "ba be bo da del en fa gar hal in ka lo mar mi na or pe qua ra ser ti tor ul va wen za".split()
#: The requests of the page when it opens.
_FIRST_PAGE = ("overview", "trajectories?limit=100", "histogram?column=score", "histogram?column=step")
#: Requests with filters by columns.
FILTERS = (
    "trajectories?right=false&cause=retrieved_and_misread&limit=100",
    "trajectories?step_min=50&step_max=60&sort=score&order=desc&limit=100",
    "trajectories?searches_min=3&status=answered&sort=generated_tokens&order=desc&limit=100",
    "histogram?column=generated_tokens&right=true&source=hotpotqa",
    "causes?step_min=20",
    "charts?run=grpo",
)
#: Texts that occur in no, in one (the record _MARKED) and in most trajectories.
TEXTS = ("no such words anywhere", "marker of one record", "the")
_MARKED = 777


def main() -> None:
    """Run the benchmark and print its figures as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=100_000, help="trajectories (default %(default)s)")
    parser.add_argument("--work", type=Path, required=True, help="folder for the run and the cache")
    parser.add_argument("--rounds", type=int, default=5, help="of each request (default %(default)s)")
    parser.add_argument("--keep", action="store_true", help="leave the files")
    args = parser.parse_args()
    run, cache = args.work / "grpo", args.work / "cache"
    if existing := [str(path) for path in (run, cache) if path.exists()]:
        parser.error(f"--work {args.work}: remove {' and '.join(existing)} of an earlier run")
    try:
        written = write_training(run, args.records)
        print(json.dumps(measure(args.work, run, written, args.rounds), indent=2))
    finally:
        if not args.keep:
            for folder in (run, cache):
                shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):  # other files in it are not removed
                args.work.rmdir()


def write_training(run: Path, records: int) -> dict[str, float]:
    """Write the records of a training, and return the number of `records` and their size in `megabytes`."""
    draw = random.Random(0)
    words = ["".join(draw.choices(_SYLLABLES, k=draw.randint(1, 4))) for _ in range(_VOCABULARY)]
    weights = list(accumulate(1 / (rank + 3) for rank in range(_VOCABULARY)))
    common = ["the", "of", "in", "and", "was", "a"]
    passages = []
    for index in range(_PASSAGES):
        text = draw.choices(words, cum_weights=weights, k=_WORDS)
        text[::4] = draw.choices(common, k=len(text[::4]))
        title = f"{words[index % _VOCABULARY].title()} {words[-1 - index % 977].title()}"
        passages.append(Document(str(index), f'"{title}"\n{" ".join(text).capitalize()}.', draw.random()))
    dump = TrajectoryDump(str(run / "trajectories"))
    for number in range(records):
        step, question = number // _STEP + 1, number // _GROUP
        if number % _GROUP == 0:
            own_passages = [_rotated(draw.choice(passages), question, i) for i in range(_OWN_PASSAGES)]
        record = _trajectory(draw, number, question, own_passages)
        gold = own_passages[0].title.strip('"')
        dump.write(
            record, step=step, split="train", data_source=("nq", "hotpotqa")[question % 2], golds=[gold]
        )
    size = sum(file.stat().st_size for file in run.rglob("*.jsonl"))
    return {"records": records, "megabytes": round(size / 1e6, 1)}


def _rotated(passage: Document, question: int, index: int) -> Document:
    """Return a passage with the same words in rotated order; `index` is its number among the question's."""
    words = passage.text.split()
    cut = (question * 7 + index) % len(words)
    text = f"{passage.title}\n{' '.join([*words[cut:], f'({question}.{index})', *words[:cut]])}"
    return Document(f"{passage.id}-{question}-{index}", text, passage.score)


def _trajectory(draw: random.Random, number: int, question: int, passages: list[Document]) -> Trajectory:
    """Return an invented trajectory with two to five searches over the passages."""
    gold = passages[0].title.strip('"')
    turns, found = [], draw.random() < 0.6
    for turn in range(draw.randint(2, 5)):
        shown = draw.choices(passages, k=5)
        if found and turn == 1:
            shown[2] = passages[0]
        query = f"{gold} {draw.choice(passages).title}"
        thought = draw.choice(passages).text[:400]
        text = f"<think> {thought} </think>\n<search> {query} </search>"
        turns.append(Turn.searched(text, [query], [shown], generated_tokens=90, observed_tokens=900))
    answer = gold if found and draw.random() < 0.6 else draw.choice(passages).title.strip('"')
    thought = TEXTS[1] if number == _MARKED else draw.choice(passages).text[:300]
    turns.append(
        Turn(f"<think> {thought} </think>\n<answer> {answer} </answer>", "answer", generated_tokens=60)
    )
    em = float(answer == gold)
    return Trajectory(
        f"train-{question}#{number % _GROUP}",
        f"Which page is about {gold}?",
        "rag_r1_mq",
        turns,
        answer,
        "answered",
        prompt_tokens=300,
        generated_tokens=sum(turn.generated_tokens for turn in turns) + draw.randint(0, 300),
        observed_tokens=sum(turn.observed_tokens for turn in turns),
        seconds=draw.random() * 30,
        rewards={"score": round(em * 0.9 + draw.random() / 10, 3), "em": em},
    )


def measure(work: Path, run: Path, written: dict[str, float], rounds: int) -> dict[str, Any]:
    """Measure the view without a cache, and then with one; returns the figures."""
    with view(work, run) as (client, process, started):
        _wait(lambda: _get(client, "trajectories?limit=0")["total"] == written["records"], 1800)
        build_s, build_memory = time.perf_counter() - started, _peak_mb(process)
        build_processor_s = processor_seconds(process.pid)
    with view(work, run) as (client, process, started):
        for path in _FIRST_PAGE:
            _get(client, path)
        started_s, started_processor_s = time.perf_counter() - started, processor_seconds(process.pid)
        result = {
            **written,
            "cache_megabytes": round(sum(f.stat().st_size for f in work.rglob("*.duckdb")) / 1e6, 1),
            "build_s": round(build_s, 1),
            "build_processor_s": round(build_processor_s, 1),
            "build_megabytes_per_s": round(written["megabytes"] / build_s, 1),
            "build_peak_memory_mb": build_memory,
            "first_page_with_start_s": round(started_s, 2),
            "first_page_with_start_processor_s": round(started_processor_s, 2),
            "first_page_s": _seconds(rounds, lambda: [_get(client, path) for path in _FIRST_PAGE]),
            "filters_s": {path: _seconds(rounds, lambda p=path: _get(client, p)) for path in FILTERS},
            "text_s": {text: _text(client, process, text, rounds) for text in TEXTS},
            "trajectory_s": _seconds(
                rounds, lambda: _get(client, f"trajectory/{int(written['records']) // 2}")
            ),
            "answer_after_giving_up_s": round(_give_up(client), 2),
            "appended_seen_s": [round(_append(client, run, i), 2) for i in range(rounds)],
            "peak_memory_mb": _peak_mb(process),
        }
    return result


@contextmanager
def view(work: Path, run: Path) -> Iterator[tuple[httpx.Client, subprocess.Popen, float]]:
    """Run the command in a process; yields a client for it, the process, and the time of its start.

    The time is one of `time.perf_counter`.
    """
    environment = {**os.environ, "XDG_CACHE_HOME": str(work / "cache")}
    command = [sys.executable, "-m", "rag_r1.cli", "view", str(run), "--port", "0"]
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            with httpx.Client(base_url=url, timeout=600, trust_env=False) as client:
                yield client, process, started
        finally:
            process.terminate()
            process.wait(60)


def _get(client: httpx.Client, path: str) -> Any:
    """Return the response to a request of the page. Raises httpx.HTTPError if it fails."""
    response = client.get(f"/api/{path}")
    response.raise_for_status()
    return response.json()


def _seconds(rounds: int, work: Callable[[], object]) -> dict[str, float]:
    """Return the median and the longest time of several rounds, in seconds."""
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return {"median": round(statistics.median(times), 3), "most": round(max(times), 3)}


def _text(client: httpx.Client, process: subprocess.Popen, text: str, rounds: int) -> dict[str, float]:
    """Measure a search for free text, also in processor seconds of the server."""
    before = processor_seconds(process.pid)
    path = f"trajectories?{urlencode({'text': text})}"
    times = _seconds(rounds, lambda: _get(client, path))
    return {**times, "processor": round((processor_seconds(process.pid) - before) / rounds, 2)}


def _give_up(client: httpx.Client) -> float:
    """Return the seconds of a filter right after text searches that the client abandoned."""
    for index in range(4):
        with suppress(httpx.ReadTimeout):
            client.get(f"/api/trajectories?text=given+up+{index}", timeout=0.05)
    started = time.perf_counter()
    _get(client, FILTERS[0])
    return time.perf_counter() - started


def _append(client: httpx.Client, run: Path, index: int) -> float:
    """Append a record to the last file, and return the seconds until it appears in the responses."""
    record_id = f"appended-{index}"
    file = max((run / "trajectories" / "train").glob("*.jsonl"))
    line = json.loads(file.read_bytes().splitlines()[0])
    with file.open("ab") as records:
        records.write((json.dumps({**line, "id": record_id}) + "\n").encode())
    started = time.perf_counter()
    _wait(lambda: _get(client, f"trajectories?id={record_id}&limit=1")["total"] == 1, 60)
    return time.perf_counter() - started


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until a condition holds. Raises TimeoutError if it does not within `seconds`."""
    end = time.perf_counter() + seconds
    while not condition():
        if time.perf_counter() > end:
            raise TimeoutError(f"the explorer does not show the records after {seconds:g} s")
        time.sleep(0.05)


def _peak_mb(process: subprocess.Popen) -> int:
    """Return the peak memory of a process, in megabytes."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


if __name__ == "__main__":
    main()
