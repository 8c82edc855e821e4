"""Writes scripted traces for questions with known passages, which teach the format but not when to search.

    python -m examples.real_small.traces --questions data/train.jsonl --index data/index --out data/traces

Each question names its passages in the order in which they are needed (`supporting_ids`,
`supporting_titles`). A trace searches for their titles in the real index, or for the question itself if it
asks for the title. When it answers depends on its strategy, one of those of the demo's traces
(rag_r1/demo/traces/mixes.py):

    guess        it answers without a search
    early        it searches for the first passage only, and guesses if others are needed
    sequential   it searches for one passage in each turn
    parallel     it searches for all passages in one turn

A trace whose search misses the needed passage is left out, since its answer would not be in the shown
passages.

MIXED has the shares of the strategies; it was fixed before the first reinforcement learning. About half of
its traces answer with too few passages, so that a policy trained on them can improve by searching more. GOLD
has the strategy with the fewest turns that searches for all passages.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from rag_r1.agent import Trajectory, Turn
from rag_r1.data.files.questions import text_of, texts_of
from rag_r1.demo.traces.mixes import Mix, Strategy, draw_strategy
from rag_r1.demo.traces.turns import turn
from rag_r1.io.atomic_files import write_json_lines
from rag_r1.io.bounded_json import limited_lines, read_json_line
from rag_r1.io.errors import DataError, reason_of
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, Positive, argument, read_arguments
from rag_r1.options.out_folder import check_out, refuse_replaced
from rag_r1.protocols import Failure
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import StartChecks
from rag_r1.tools import RetrievalClient, RetrieverConfig
from rag_r1.tools.retrieval.local_server import check_served_index, retrieval_process

#: The protocol of the traces.
PROTOCOL = "rag_r1_mq"
#: Kinds of questions whose facts can be searched for in one turn.
INDEPENDENT = ("comparison", "yes_no")
_MAX_LINE_BYTES = 1 << 20

GOLD: Mix = {
    "one_hop": {"sequential": 1.0},
    "two_facts": {"sequential": 1.0},
    "bridge": {"sequential": 1.0},
    **{kind: {"parallel": 1.0} for kind in INDEPENDENT},
}
MIXED: Mix = {
    "one_hop": {"guess": 0.35, "sequential": 0.65},
    "two_facts": {"guess": 0.35, "sequential": 0.65},
    "bridge": {"guess": 0.25, "early": 0.45, "sequential": 0.3},
    **{kind: {"guess": 0.25, "early": 0.35, "sequential": 0.15, "parallel": 0.25} for kind in INDEPENDENT},
}
MIXES = {"mixed": MIXED, "gold": GOLD}


@dataclass(frozen=True)
class Question:
    """A question with its passages, in the order in which they are needed."""

    id: str
    kind: str
    text: str
    golds: tuple[str, ...]
    #: Ids of the passages.
    ids: tuple[str, ...]
    #: Titles of the passages.
    titles: tuple[str, ...]


class TraceArguments(Arguments):
    """The questions, the index and the strategies."""

    questions: Path = argument("JSON lines of `rag-r1 passage-questions`", "FILE")
    index: Path = argument("index of the same passages", "DIR")
    out: Path = argument("folder for traces.jsonl", "DIR")
    mix: Literal["mixed", "gold"] = argument(
        "strategies: mixed as for the warm start, or the shortest right ones", default="mixed"
    )
    number: Positive | None = argument("traces at most (default: one of each question)", "N", default=None)
    topk: Positive = argument("passages of a query", default=2)
    seed: int = argument("seed of the draws", default=0)


@command_main(RunError, ValueError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    prog = "python -m examples.real_small.traces"
    args = read_arguments(TraceArguments, arguments, prog=prog, description=__doc__, check=_check_start)
    questions = _check_start(args)
    args.out.mkdir(parents=True, exist_ok=True)
    with retrieval_process(args.index, args.out / "retriever.log") as url:
        records, excluded = asyncio.run(_make_records(args, questions, url))
    write_json_lines(args.out / "traces.jsonl", records)
    counts = ", ".join(f"{count} {name}" for name, count in sorted(excluded.items())) or "none"
    print(f"{args.out / 'traces.jsonl'}: {len(records):,} traces; left out: {counts}")
    return 0


def _check_start(args: TraceArguments) -> list[Question]:
    """Return the questions. Raises StartError with their problems and those of the index and of --out."""
    with StartChecks() as checks:
        checks.run(check_out, args.out)
        checks.run(refuse_replaced, [args.questions], args.out, ["traces.jsonl"])
        checks.run(check_served_index, args.index, "--index")
        questions = checks.run(read_questions, args.questions)
    return questions or []


def read_questions(path: Path) -> list[Question]:
    """Read the questions of a file.

    Raises DataError for a row that cannot be used, naming its line, and for a file without questions, and
    TooLargeError, also with the line, for a line of more than a megabyte.
    """
    questions = []
    with path.open("rb") as lines:
        for number, line in enumerate(limited_lines(lines, _MAX_LINE_BYTES), 1):
            try:
                row = read_json_line(line)
                names = ("golden_answers", "supporting_ids", "supporting_titles")
                golds, ids, titles = (tuple(texts_of(row, name)) for name in names)
                if row["kind"] not in MIXED or not (golds and ids) or len(ids) != len(titles):
                    raise ValueError("kind, golden_answers or the passages are not usable")
                text = text_of(row, "question")
                questions.append(Question(str(row["id"]), row["kind"], text, golds, ids, titles))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                message = f"{path}, line {number}: {type(error).__name__}: {reason_of(error)}"
                raise DataError(f"{message}: make the file with rag-r1 passage-questions") from error
    if not questions:
        raise DataError(f"{path} has no questions: make the file with rag-r1 passage-questions")
    return questions


async def _make_records(
    args: TraceArguments, questions: list[Question], url: str
) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Return the record of each trace, and how many traces of each strategy were left out."""
    rng = random.Random(f"traces-{args.seed}")
    sample = rng.sample(questions, min(args.number or len(questions), len(questions)))
    answers: dict[str, list[str]] = {}
    for question in questions:
        answers.setdefault(question.kind, []).append(question.golds[0])
    records, excluded = [], Counter[str]()
    client = RetrievalClient(RetrieverConfig(url=url, topk=args.topk))
    try:
        for question in tqdm(sample, "traces", unit="trace", mininterval=5):
            strategy = draw_strategy(MIXES[args.mix][question.kind], rng)
            # A guess is one of the two compared names or, for other kinds, the answer to any such question.
            possible = question.titles if question.kind == "comparison" else answers[question.kind]
            guess = rng.choice(possible)
            trajectory = await make_trace(question, strategy, guess, client)
            if trajectory is None:
                excluded[strategy] += 1
                continue
            run = {"step": 0, "split": "train", "data_source": question.kind, "golds": list(question.golds)}
            records.append({**run, **trajectory.to_dict()})
    finally:
        await client.close()
    return records, excluded


async def make_trace(
    question: Question, strategy: Strategy, guess: str, client: RetrievalClient
) -> Trajectory | None:
    """Return the trace of a question by a strategy, or None if a search does not find its passage.

    `guess` is the answer of a strategy that does not search for all passages. Raises DataError if a search
    fails, since a failure does not show that the index lacks the passage.
    """
    trajectory = Trajectory(question.id, question.text, PROTOCOL, status="answered")
    passages = list(zip(question.ids, question.titles, strict=True))
    rounds = {
        "guess": [],
        "early": [passages[:1]],
        "sequential": [[passage] for passage in passages],
        "parallel": [passages],
    }[strategy]
    for step in rounds:
        queries = [_query(question, title).replace('"', "") for _, title in step]
        answers = await client.search(queries)
        if failure := next((answer for answer in answers if isinstance(answer, Failure)), None):
            raise DataError(f"a search failed ({failure.detail}): see retriever.log in --out, then try again")
        results = [answer for answer in answers if isinstance(answer, list)]
        for (passage_id, _), documents in zip(step, results, strict=True):
            if passage_id not in {document.id for document in documents}:
                return None
        thought = "I need to search for both." if len(queries) > 1 else "I need to search."
        text = turn(thought, "search", ", ".join(map(_quote, queries)))
        trajectory.turns.append(Turn.searched(text, queries, results))
    has_all_passages = sum(map(len, rounds)) == len(passages)
    thought = "I know enough." if has_all_passages else "I can guess."
    trajectory.answer = question.golds[0] if has_all_passages else guess
    trajectory.turns.append(Turn(turn(thought, "answer", trajectory.answer), "answer"))
    return trajectory


def _query(question: Question, title: str) -> str:
    """Return the query for a passage: its title, or the question if it asks for the title (two_facts)."""
    return question.text.rstrip("?") if question.kind == "two_facts" else title


def _quote(query: str) -> str:
    """Quote a query for the protocol's list of queries, if it has a comma."""
    return f'"{query}"' if "," in query else query


if __name__ == "__main__":
    sys.exit(main())
