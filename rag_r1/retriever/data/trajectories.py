"""Reads the trajectories of a finished evaluation, from which the rounds are taken (rounds.py).

What the policy generated is taken from the run's response cache, in the very tokens, as far as the endpoint
returned token ids; otherwise the turn's text is encoded. Left out are trajectories in which the
infrastructure failed, those with a search that was not carried out, as the published pipeline does, and those
with a call that failed (and was shown to the policy as an error): it cannot be played back as it was.

The file is read once to find the trajectories. Only their byte offsets are kept in memory, and each is read
again when it is needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rag_r1.agent import Trajectory, Turn, UnknownTokenError
from rag_r1.agent.records import trajectory_of
from rag_r1.config.agent_setup import AgentSetup
from rag_r1.data.rows import step_answers_of
from rag_r1.evaluation.condition_run import TRAJECTORIES
from rag_r1.io.bounded_json import limited_lines, read_json_line
from rag_r1.retriever.data.rounds import PlayedTrajectory, SearchRound, searches_of
from rag_r1.runs.errors import RunError
from rag_r1.runs.folder import JOURNAL, EpisodeOutcome
from rag_r1.runs.response_cache import EXCHANGES, Usage

#: Why trajectories are left out.
REASONS = {
    "failed": "the infrastructure failed in it",
    "not_searched": "it has no search",
    "not_carried_out": "a search of it was not carried out",
    "call_failed": "a call of it failed, which cannot be played back",
}
#: What is raised for a line that is not a record.
_PARSE_ERRORS = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def check_trajectories(run: Path | None) -> None:
    """Raises RunError unless the folder of `--trajectories`, if one is given, has the records of an
    evaluation."""
    if run is not None and not (run / TRAJECTORIES / "records.jsonl").is_file():
        message = f"--trajectories {run} has no {TRAJECTORIES}/records.jsonl"
        raise RunError(f"{message}: give the folder of a finished `rag-r1 eval`")


class TrajectoryReader:
    """The trajectories of a finished run of `rag-r1 eval` that can be used, in the order of its questions.

    `run`: the run's folder; `setup`: the agent, whose codec reads the tokens; `step_answers`: by question id,
    the answers of steps as the questions' rows name them now, which replace those in the records. Raises
    RunError if the run has no records, was played in another protocol or with several episodes of a question,
    or has a line that is not of an evaluation, which the message names."""

    def __init__(self, run: Path, setup: AgentSetup, step_answers: Mapping[str, Sequence[str]] | None = None):
        self.path = run / TRAJECTORIES / "records.jsonl"
        self._setup = setup
        self._named_answers = step_answers or {}
        self._responses = _CachedResponses(run / JOURNAL / EXCHANGES)
        #: The usage of the run, as its endpoint counted it.
        self.usage = self._responses.usage
        #: Trajectories that are left out, by the reason (of REASONS).
        self.excluded: Counter[str] = Counter()
        #: The outcomes of the episodes in which the infrastructure failed.
        self.failed: list[EpisodeOutcome] = []
        #: The number of rounds.
        self.rounds = 0
        #: The number of trajectories whose question names the answers of its steps.
        self.with_steps = 0
        self._offsets: list[int] = []
        check_trajectories(run)
        _read_lines(self.path, self._index_record)

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[PlayedTrajectory]:
        with self.path.open("rb") as file:
            for offset in self._offsets:
                file.seek(offset)
                yield self._read_trajectory(read_json_line(file.readline()))

    def iter_rounds(self) -> Iterator[SearchRound]:
        """Yields all rounds, in the order of the trajectories."""
        return (search for trajectory in self for search in trajectory.rounds)

    def _index_record(self, record: dict[str, Any], offset: int) -> None:
        """Remember where a record stands, or count why it is left out. Raises RunError for one of another
        kind of run."""
        trajectory = trajectory_of(record)
        outcome = EpisodeOutcome.of(record)
        name = record["question_id"]
        _check_types(record, trajectory)
        if trajectory.protocol != self._setup.protocol.name:
            raise RunError(
                f"{self.path}: {name} was played with --protocol {trajectory.protocol}, and the agent has "
                f"{self._setup.protocol.name}: give --protocol {trajectory.protocol}, or other trajectories"
            )
        if trajectory.paths or record.get("sample"):
            raise RunError(f"{self.path} has several episodes of {name}: play each question once")
        if outcome.right is None:
            self.excluded["failed"] += 1
            self.failed.append(outcome)
        elif any(map(_is_cut_off, trajectory.turns)):
            self.excluded["not_carried_out"] += 1
        elif any(call.status == "failed" for turn in trajectory.turns for call in turn.calls):
            self.excluded["call_failed"] += 1
        elif not (searches := searches_of(trajectory.turns)):
            self.excluded["not_searched"] += 1
        else:
            self.rounds += len(searches)
            self.with_steps += bool(self._step_answers(record))
            self._offsets.append(offset)

    def _read_trajectory(self, record: Mapping[str, Any]) -> PlayedTrajectory:
        """The trajectory of a record, with the tokens of its turns."""
        trajectory = trajectory_of(dict(record))
        ids = (self._ids(record["id"], number, turn) for number, turn in enumerate(trajectory.turns))
        return PlayedTrajectory(
            id=str(record["question_id"]),
            dataset=str(record.get("data_source", "")),
            golds=tuple(record["golds"]),
            messages=tuple(record["prompt"]),
            trajectory=trajectory,
            token_ids=tuple(ids),
            step_answers=self._step_answers(record),
        )

    def _step_answers(self, record: Mapping[str, Any]) -> tuple[str, ...]:
        """The answers of the steps of a record's question."""
        named = self._named_answers.get(str(record["question_id"]))
        return tuple(named or step_answers_of(record.get("metadata")))

    def _ids(self, request_id: str, number: int, turn: Turn) -> tuple[int, ...]:
        """The tokens of a turn: those that were sampled, if they decode to the turn's text, else the text
        encoded."""
        codec = self._setup.codec
        sampled = (self._responses.ids(request_id, number) or [])[: turn.generated_tokens]
        try:
            if sampled and codec.decode(sampled) == turn.text:
                return tuple(sampled)
        except UnknownTokenError:
            pass
        return tuple(codec.encode(turn.text))


class _CachedResponses:
    """The responses in a run's cache, by episode and turn. Of several for the same turn the last counts: it
    is of the attempt at the episode that reached its end."""

    def __init__(self, path: Path):
        self.path = path
        self.usage = Usage()
        self._offsets: dict[tuple[str, int], int] = {}
        if path.is_file():
            _read_lines(path, self._index_response)

    def ids(self, request_id: str, turn: int) -> list[int] | None:
        """The token ids of a turn; None if the endpoint did not return them."""
        if (offset := self._offsets.get((request_id, turn))) is None:
            return None
        with self.path.open("rb") as file:
            file.seek(offset)
            ids = read_json_line(file.readline())["answer"].get("ids")
        return ids if isinstance(ids, list) and all(type(token) is int for token in ids) else None

    def _index_response(self, line: dict[str, Any], offset: int) -> None:
        """Count the usage of a response, and remember where it stands."""
        self.usage.add(line["usage"])
        if "answer" in line:
            line["answer"].get("ids")  # raises AttributeError for anything but an object
            self._offsets[line["ask"], line["turn"]] = offset


def _read_lines(path: Path, index: Callable[[dict[str, Any], int], None]) -> None:
    """Call `index` with each object of a file and its byte offset. Raises RunError, which names the line for
    which it raised. A last line without an end, which a kill has cut off, is skipped."""
    offset, number = 0, 1
    with path.open("rb") as file:
        try:
            for line in limited_lines(file):
                if not line.endswith(b"\n"):
                    return
                index(read_json_line(line), offset)
                offset += len(line)
                number += 1
        except _PARSE_ERRORS as error:
            raise RunError(
                f"{path}, line {number} is not of an evaluation ({error!r}): give the folder of a "
                "finished `rag-r1 eval` of this version"
            ) from error


def _check_types(record: Mapping[str, Any], trajectory: Trajectory) -> None:
    """Raises TypeError for fields of a record that are of another type than a later step needs."""
    calls = [call for turn in trajectory.turns for call in turn.calls]
    documents = [document for call in calls for document in call.documents or ()]
    kinds = [
        (list, [record["golds"], record["prompt"]]),
        (dict, [*record["prompt"], *(call.arguments for call in calls)]),
        (int, [turn.generated_tokens for turn in trajectory.turns]),
        (
            str,
            [trajectory.id, trajectory.question, *record["golds"], *(turn.text for turn in trajectory.turns)]
            + [call.tool for call in calls]
            + [text for document in documents for text in (document.id, document.contents)],
        ),
    ]
    for kind, values in kinds:
        for value in values:
            if not isinstance(value, kind):
                raise TypeError(f"{str(value)[:40]!r} is not of type {kind.__name__}")


def _is_cut_off(turn: Turn) -> bool:
    """Whether the turn has a call whose results the policy did not get."""
    return turn.action in ("search", "call") and (
        not turn.calls or any(call.documents is None for call in turn.calls)
    )
