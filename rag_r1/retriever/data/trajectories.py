"""Reads the trajectories of a finished evaluation, whose searches become rounds (rounds.py).

The tokens that the policy generated are taken from the run's response cache if the endpoint returned token
ids; otherwise the text of the turn is encoded. A trajectory is left out

- if the infrastructure failed in it,
- if one of its searches was not carried out, as in the published pipeline,
- if a call failed and the policy was shown the error, because such a call cannot be replayed,
- if it has no search.

A TrajectoryReader reads the records and the cache once, to find the usable trajectories and the responses.
Only byte offsets are kept in memory, and each trajectory and response is read again when it is needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rag_r1.agent import Trajectory, Turn, UnknownTokenError
from rag_r1.agent.records import trajectory_of
from rag_r1.config.agent_setup import AgentSetup
from rag_r1.data.rows import step_answers_of
from rag_r1.evaluation.condition_run import TRAJECTORIES
from rag_r1.io.bounded_json import limited_lines, read_json_line
from rag_r1.retriever.data.rounds import PlayedTrajectory, SearchRound, searches_of
from rag_r1.runs.errors import RunError
from rag_r1.runs.folder import JOURNAL, EpisodeOutcome
from rag_r1.runs.json_lines import PARSE_ERRORS
from rag_r1.runs.response_cache import EXCHANGES, Usage

#: Why a trajectory is left out: the key of the reason in summary.json, and its text.
REASONS = {
    "failed": "the infrastructure failed in it",
    "not_searched": "it has no search",
    "not_carried_out": "a search of it was not carried out",
    "call_failed": "a call of it failed, which cannot be played back",
}
Parsed = TypeVar("Parsed")


def check_trajectories(run: Path | None) -> None:
    """Check the folder given as `--trajectories`, if any. Raises RunError if it has no records of an
    evaluation."""
    if run is not None and not (run / TRAJECTORIES / "records.jsonl").is_file():
        message = f"--trajectories {run} has no {TRAJECTORIES}/records.jsonl"
        raise RunError(f"{message}: give the folder of a finished `rag-r1 eval`")


class TrajectoryReader:
    """The usable trajectories of a finished run of `rag-r1 eval`, in the order of its questions."""

    def __init__(self, run: Path, setup: AgentSetup, step_answers: Mapping[str, Sequence[str]] | None = None):
        """`run` is the run's folder, and `setup` the agent, whose codec decodes the tokens. `step_answers`
        maps question ids to the answers of intermediate steps; they replace those in the run's records.

        Raises RunError if the run has no records, used another protocol or several episodes per question, or
        contains a line that is not the record of an episode, and OSError if a file cannot be read.
        """
        self.path = run / TRAJECTORIES / "records.jsonl"
        self._setup = setup
        self._step_answers_by_id = step_answers or {}
        self._responses = _CachedResponses(run / JOURNAL / EXCHANGES)
        #: The usage of the run's endpoint.
        self.usage = self._responses.usage
        #: Number of trajectories that are left out, by key of REASONS.
        self.excluded: Counter[str] = Counter()
        #: The outcomes of the episodes in which the infrastructure failed.
        self.failed: list[EpisodeOutcome] = []
        #: Number of rounds of all trajectories.
        self.rounds = 0
        #: Number of trajectories whose question names the answers of its steps.
        self.with_steps = 0
        self._offsets: list[int] = []
        check_trajectories(run)
        for offset, (record, trajectory, outcome) in _read_lines(self.path, _parse_record):
            self._index_record(offset, record, trajectory, outcome)

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[PlayedTrajectory]:
        with self.path.open("rb") as file:
            for offset in self._offsets:
                file.seek(offset)
                yield self._read_trajectory(read_json_line(file.readline()))

    def iter_rounds(self) -> Iterator[SearchRound]:
        """Yield all rounds, in the order of the trajectories."""
        return (search for trajectory in self for search in trajectory.rounds)

    def _index_record(
        self, offset: int, record: Mapping[str, Any], trajectory: Trajectory, outcome: EpisodeOutcome
    ) -> None:
        """Remember the offset of a usable record, and count the reason for any other one. Raises RunError for
        a record of another kind of run."""
        name = record["question_id"]
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
        elif any(map(_has_unexecuted_call, trajectory.turns)):
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
        """Return the trajectory of a record, with the tokens of its turns."""
        trajectory = trajectory_of(dict(record))
        ids = (self._token_ids(record["id"], index, turn) for index, turn in enumerate(trajectory.turns))
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
        """Return the answers of the intermediate steps of a record's question."""
        answers = self._step_answers_by_id.get(str(record["question_id"]))
        return tuple(answers or step_answers_of(record.get("metadata")))

    def _token_ids(self, request_id: str, index: int, turn: Turn) -> tuple[int, ...]:
        """Return the tokens of the turn with this index: the sampled ones if they decode to its text, and
        otherwise the encoded text. Of a response's tokens, those behind the end of the turn's action are left
        out."""
        codec = self._setup.codec
        sampled = (self._responses.token_ids(request_id, index) or [])[: turn.generated_tokens]
        try:
            if sampled and codec.decode(sampled) == turn.text:
                return tuple(sampled)
        except UnknownTokenError:
            pass
        return tuple(codec.encode(turn.text))


class _CachedResponses:
    """The responses in a run's cache, by episode and turn. If there are several for one turn, the last one
    counts, because it belongs to the attempt that finished the episode."""

    def __init__(self, path: Path):
        self.path = path
        self.usage = Usage()
        self._offsets: dict[tuple[str, int], int] = {}
        for offset, (usage, turn) in _read_lines(path, _parse_response) if path.is_file() else ():
            self.usage.add(usage)
            if turn is not None:
                self._offsets[turn] = offset

    def token_ids(self, request_id: str, turn: int) -> list[int] | None:
        """Return the token ids of a turn; None if the endpoint did not return them."""
        if (offset := self._offsets.get((request_id, turn))) is None:
            return None
        with self.path.open("rb") as file:
            file.seek(offset)
            ids = read_json_line(file.readline())["answer"].get("ids")
        return ids if isinstance(ids, list) and all(type(token) is int for token in ids) else None


def _read_lines(path: Path, parse: Callable[[dict[str, Any]], Parsed]) -> Iterator[tuple[int, Parsed]]:
    """Yield the byte offset of each line of a file, and what `parse` returns for its object. A last line
    without a line break, which a kill has cut off, is skipped. Raises RunError, with the number of the line,
    if a line is not JSON or `parse` rejects it."""
    offset, number = 0, 1
    with path.open("rb") as file:
        try:
            for line in limited_lines(file):
                if not line.endswith(b"\n"):
                    return
                yield offset, parse(read_json_line(line))
                offset += len(line)
                number += 1
        except PARSE_ERRORS as error:  # not those of the caller's loop, which a generator does not see
            reason = f"it has no {error}" if isinstance(error, KeyError) else error
            raise RunError(
                f"{path}, line {number} is not of an evaluation ({reason}): give the folder of a "
                "finished `rag-r1 eval` of this version"
            ) from error


def _parse_record(record: dict[str, Any]) -> tuple[dict[str, Any], Trajectory, EpisodeOutcome]:
    """Return a record with its trajectory and outcome. Raises one of PARSE_ERRORS if it is none."""
    trajectory, outcome = trajectory_of(record), EpisodeOutcome.of(record)
    _check_types(record, trajectory)
    return {**record, "question_id": str(record["question_id"])}, trajectory, outcome


def _parse_response(line: dict[str, Any]) -> tuple[Usage, tuple[str, int] | None]:
    """Return the usage of a line of the response cache (rag_r1/runs/response_cache.py), and the request id
    and turn that it answers; None without an answer. Raises one of PARSE_ERRORS for any other line."""
    usage = Usage()
    usage.add(line["usage"])
    if "answer" not in line:
        return usage, None
    if not isinstance(line["answer"], dict):
        raise TypeError("its `answer` is not an object")
    return usage, (str(line["ask"]), int(line["turn"]))


def _check_types(record: Mapping[str, Any], trajectory: Trajectory) -> None:
    """Check the types on which later steps rely. Raises TypeError for the first wrong one."""
    calls = [call for turn in trajectory.turns for call in turn.calls]
    documents = [document for call in calls for document in call.documents or ()]
    texts = [trajectory.id, trajectory.question, *(turn.text for turn in trajectory.turns)]
    texts += [text for document in documents for text in (document.id, document.contents)]
    step_answers = step_answers_of(record.get("metadata"))
    typed_values = [
        (list, [record["golds"], record["prompt"]]),
        (dict, [*record["prompt"], *(call.arguments for call in calls)]),
        (int, [turn.generated_tokens for turn in trajectory.turns]),
        (str, [*texts, *record["golds"], *step_answers, *(call.tool for call in calls)]),
    ]
    for kind, values in typed_values:
        for value in values:
            if not isinstance(value, kind):
                raise TypeError(f"{str(value)[:40]!r} is not of type {kind.__name__}")


def _has_unexecuted_call(turn: Turn) -> bool:
    """Return whether the turn has a call whose results the policy was never shown."""
    return turn.action in ("search", "call") and (
        not turn.calls or any(call.documents is None for call in turn.calls)
    )
