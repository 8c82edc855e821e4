"""Small runs as a training and evaluations leave them, and `rag-r1 view` over them, in a thread."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from rag_r1.agent import Trajectory
from rag_r1.agent.records import TrajectoryDump
from rag_r1.agent.trajectory import Turn
from rag_r1.protocols import Document

GOLD = "Mormu Flow"
PASSAGE = Document("p1", '"Karlen Ford"\nThe town Karlen Ford lies on the river Mormu Flow.', 4.5)
OTHER = Document("p2", '"Zantis Mill"\nThe doctor Tito Vesmer was born in Zantis Mill.', 1.5)
QUESTIONS = ("Which river is at Karlen Ford?", "Where was Mara born?", "Who built the mill?")


def played(number: int, answer: str | None, sample: int = 0, documents: Any = (PASSAGE, OTHER)) -> Trajectory:
    """A trajectory of a question: one search with two queries, then the answer."""
    right = answer == GOLD
    queries = ["Karlen Ford", "river"]
    turns = [
        Turn.searched(
            f"<think> I need to search. </think>\n<search> {', '.join(queries)} </search>",
            queries,
            [list(documents), list(documents[1:])],
            generated_tokens=14,
            observed_tokens=60,
        )
    ]
    if answer is not None:
        turns.append(Turn(f"<answer> {answer} </answer>", "answer", generated_tokens=9))
    return Trajectory(
        f"q{number}#{sample}",
        QUESTIONS[number],
        "rag_r1_mq",
        turns,
        answer,
        "turn_limit" if answer is None else "answered",
        prompt_tokens=25,
        generated_tokens=23,
        observed_tokens=60,
        seconds=1.5,
        rewards={"score": 0.9 * right, "em": float(right), "turn_cost": 2.0, "missing_terms": 0.0},
        turn_scores=[0.0, 0.9 * right][: len(turns)],
    )


def write_training(folder: Path, steps: int = 3) -> TrajectoryDump:
    """Validations of three questions at steps 0 and `steps`, of which one becomes right; at each step between
    four rollouts of the first question, of which as many are right as the step says. Returns the dump, for
    more records."""
    dump = TrajectoryDump(str(folder / "trajectories"))
    context = {"data_source": "world/rivers", "golds": [GOLD]}
    for step in (0, steps):
        for number, answer in enumerate((GOLD if step else "Mill Creek", GOLD, None)):
            dump.write(played(number, answer), step=step, split="val", **context)
    for step in range(1, steps + 1):
        for sample in range(4):
            answer = GOLD if sample < step else "Mill Creek"
            dump.write(played(0, answer, sample), step=step, split="train", **context)
    return dump


def write_evaluation(folder: Path, *answers: str | None) -> None:
    """One trajectory of each question, with these answers."""
    lines = [
        {"question_id": f"q{number}", "data_source": "world", "golds": [GOLD], "right": answer == GOLD}
        | played(number, answer).to_dict()
        for number, answer in enumerate(answers)
    ]
    write_records(folder, lines)


def write_records(folder: Path, records: list[dict[str, Any]]) -> None:
    """The records of a finished run; what JSON cannot hold as UTF-8 is escaped."""
    (folder / "trajectories").mkdir(parents=True)
    text = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "trajectories" / "records.jsonl").write_text(text, "utf-8")


@contextmanager
def view_server(*paths: Path, token: str | None = None) -> Iterator[str]:
    """The server of `rag-r1 view PATHS`; yields its address when it has read them."""
    import uvicorn

    from rag_r1.explorer.app import create_app
    from rag_r1.explorer.store import Store
    from rag_r1.http_server.idle_timeout import uvicorn_config
    from rag_r1.http_server.listening import bind_socket

    with bind_socket("127.0.0.1", 0) as listener, closing(Store(paths)) as store:
        store.refresh()
        server = uvicorn.Server(uvicorn_config(create_app(store, token=token), stop_s=3, lifespan="on"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + 30
        while not server.started:
            assert thread.is_alive() and time.monotonic() < deadline, "the server does not start"
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join(30)
