"""Estimates the requests, tokens, cost and time of a plan before it is run.

The estimate assumes that every kind gets all its questions, that each passes all checks, that every chain has
its greatest length, and that each trace uses all its turns. So the number of requests for the questions is an
upper limit, apart from malformed replies, which are requested again. So is the number for the traces once the
number of training questions is known; until then it is an estimate, because documents are divided between
training and evaluation, and not questions. Tokens and cost are estimates from assumed lengths of prompts and
replies; only `teacher.max_cost` limits the cost. Finished steps are left out. The time of the trainings is
known only for the smallest model size on two CPU cores, where it was measured (sizes.py). For other sizes the
forecast says that it is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory

from rag_r1.io.errors import DataError
from rag_r1.own.artifacts import OwnArtifacts
from rag_r1.own.evaluation_steps import evaluations
from rag_r1.own.plan import OwnPlan
from rag_r1.own.questions_step import questions_spec
from rag_r1.own.sizes import MeasuredTimes, size_of
from rag_r1.probes.probes import PROBES
from rag_r1.questions.forecast import forecast, forecast_lines
from rag_r1.questions.passages.documents import PassagePool, read_pool
from rag_r1.questions.prompts import Prompts
from rag_r1.questions.seeds import LONGEST_CHAIN, PAIRS, Seed
from rag_r1.questions.spec import QuestionsSpec
from rag_r1.rollouts.requests import read_questions
from rag_r1.runs.errors import RunError
from rag_r1.runs.response_cache import Usage
from rag_r1.runs.steps import PipelineFolder
from rag_r1.tools.documents.corpus import index_folder

#: Assumed lengths in the traces, in tokens: of the prompt with its instruction, a turn and an observation.
_PROMPT_TOKENS, _TURN_TOKENS, _OBSERVATION_TOKENS = 600, 120, 600
#: Assumed time in which a model server answers a request, in seconds.
_ANSWER_S = 3.0
#: Assumed mean number of episodes of a question in the filter, which replays it if its first answer is wrong.
_FILTER_EPISODES = 4
#: Assumed number of SFT samples in a trace.
_SAMPLES_PER_TRACE = 2.7
#: Assumed time until vLLM or a training has started, in seconds.
_START_S = 60.0


@dataclass(frozen=True)
class Forecast:
    """The requests, cost and time that the unfinished steps of a plan are expected to take."""

    #: Numbers of questions for training and for evaluation.
    train: int
    test: int
    #: Usage of the two models on servers.
    teacher: Usage
    reader: Usage
    #: Cost of both, in the currency of the prices.
    cost: float
    #: The forecast as text.
    lines: tuple[str, ...]


def forecast_of(artifacts: OwnArtifacts, folder: PipelineFolder) -> Forecast:
    """Return the forecast for the steps that are unfinished in `folder`. The plan must have been checked.

    Raises RunError if the corpus cannot be read.
    """
    plan = artifacts.plan
    teacher, reader = Usage(), Usage()
    lines: list[str] = []
    rows = folder.facts("questions").get("rows")
    if rows is not None:
        train, test = rows.get("train", 0), rows["test"]
    elif not plan.writes_questions:
        train, test = _own_counts(plan)
    else:
        spec = questions_spec(artifacts)
        pool = _pool(artifacts, spec.most_passages)
        seeds = max_seeds(spec, pool)
        writing, reading = forecast(spec, seeds, Prompts(()))
        lines += [f"passages: {pool.n_read:,}", *forecast_lines(spec, seeds, writing, reading)]
        teacher.add(writing)
        reader.add(reading)
        test = round(len(seeds) * plan.questions.test_share)
        train = len(seeds) - test
    if not plan.sft.skip and folder.seconds("traces") is None:
        traces = trace_usage(artifacts, train)
        teacher.add(traces)
        lines.append(_traces_line(plan, traces, is_limit=bool(rows) or not plan.writes_questions))
    cost = _cost(plan, teacher, reader)
    if cost:
        lines.append(f"cost: about {cost:.4g}, if replies have the usual length" + _limit_text(plan, cost))
    lines += _model_time_lines(plan, teacher, reader)
    lines += _training_time_lines(artifacts, folder, train, test)
    return Forecast(train, test, teacher, reader, cost, tuple(lines))


def _pool(artifacts: OwnArtifacts, most_passages: int) -> PassagePool:
    """Return the passages from which questions are written, at most `most_passages`.

    If the step that makes the corpus is unfinished, a temporary corpus is made. Raises RunError if the corpus
    cannot be read.
    """
    documents, questions = artifacts.plan.documents, artifacts.plan.questions
    with TemporaryDirectory() as temp:
        corpus = artifacts.corpus
        if documents.folder is not None and not all(path.is_file() for path in corpus):
            folder, skip = Path(documents.folder), documents.skip_bad_files
            corpus = [index_folder(folder, Path(temp), run=artifacts.out, skip_bad_files=skip)]
        try:
            return read_pool(corpus, artifacts.plan.run.seed, questions.test_share, most_passages)
        except DataError as error:
            raise RunError(str(error)) from error


def max_seeds(spec: QuestionsSpec, pool: PassagePool) -> list[Seed]:
    """Return the largest possible number of seeds, each with as many passages as possible.

    They are not the seeds of the run: they take the passages in the order of the corpus, since only the
    numbers and lengths of the passages matter for the forecast. If the corpus has fewer passages than a
    chain, passages are repeated.
    """
    passages = pool.passages
    seeds = []
    for kind in dict.fromkeys(spec.kinds):
        size = LONGEST_CHAIN if kind == "bridge" else 2 if kind in PAIRS else 1
        count = min(spec.per_kind, len(passages)) if len(passages) >= min(size, 2) else 0
        for index in range(count):
            seed_passages = tuple(islice(cycle(passages), index * size, (index + 1) * size))
            seeds.append(Seed(f"{kind}-{index}", kind, seed_passages))
    return seeds


def trace_usage(artifacts: OwnArtifacts, questions: int) -> Usage:
    """Return the usage of the traces for a number of training questions, if each trace uses all its turns."""
    plan = artifacts.plan
    turns = artifacts.episodes.max_turns + 1  # the last one answers
    episodes = min(questions, plan.traces.questions or questions) * plan.traces.samples
    tokens = sum(_PROMPT_TOKENS + turn * (_TURN_TOKENS + _OBSERVATION_TOKENS) for turn in range(turns))
    return Usage(episodes * turns, episodes * tokens, episodes * turns * _TURN_TOKENS)


def _own_counts(plan: OwnPlan) -> tuple[int, int]:
    """Return the numbers of the user's own questions: those for training, and the held-out ones."""
    files = (plan.questions.train, plan.questions.test)
    train, test = (len(read_questions(paths, plan.protocol).rows) if paths else 0 for paths in files)
    return train, test


def _cost(plan: OwnPlan, teacher: Usage, reader: Usage) -> float:
    """Return the cost of both models. If the plan has no reader, the teacher reads at its own prices."""
    reader_spec = plan.reader_spec if plan.writes_questions else None
    prices = plan.teacher if reader_spec is None else reader_spec
    teacher_cost = teacher.cost(plan.teacher.price_in, plan.teacher.price_out)
    return teacher_cost + reader.cost(prices.price_in, prices.price_out)


def _limit_text(plan: OwnPlan, cost: float) -> str:
    """Return a remark about a cost above the limit of the plan; "" for any other cost."""
    limit = plan.teacher.max_cost
    return "" if limit is None or cost <= limit else f"; teacher.max_cost {limit:g} may end the run earlier"


def _traces_line(plan: OwnPlan, usage: Usage, *, is_limit: bool) -> str:
    """Return the line about the requests for the traces. `is_limit` says that their number is an upper
    limit, and not an estimate."""
    limit = "at most" if is_limit else "about"
    return (
        f"  traces of {plan.teacher.model}: {limit} {usage.requests:,} requests, about "
        f"{usage.prompt_tokens:,} prompt tokens and {usage.completion_tokens:,} generated tokens"
    )


def _model_time_lines(plan: OwnPlan, teacher: Usage, reader: Usage) -> Iterator[str]:
    """Yield the line about the time that the teacher and the reader take, if they get any request."""
    if requests := teacher.requests + reader.requests:
        time = duration_text(requests * _ANSWER_S / plan.teacher.in_flight)
        yield f"time of teacher and reader: about {time}, if a request takes {_ANSWER_S:g} s"


def _training_time_lines(
    artifacts: OwnArtifacts, folder: PipelineFolder, train: int, test: int
) -> Iterator[str]:
    """Yield the line about the time of trainings and evaluations."""
    plan = artifacts.plan
    times = size_of(str(plan.policy.model)).times if plan.policy.platform == "cpu" else None
    if plan.trains and times is None:
        yield "time of the trainings: not measured for this model on this platform; each step prints its own"
    elif times is not None and plan.policy.url is None:
        seconds = _training_seconds(artifacts, train, test, times)
        unfinished = [value for step, value in seconds.items() if folder.seconds(step) is None]
        yield f"time of the rest: about {duration_text(sum(unfinished))} on two cores"


def _training_seconds(
    artifacts: OwnArtifacts, train: int, test: int, times: MeasuredTimes
) -> dict[str, float]:
    """Return the estimated seconds of each training, of the filter and of each evaluation, by step."""
    plan, config = artifacts.plan, artifacts.episodes.config
    traces = min(train, plan.traces.questions or train) * plan.traces.samples
    epoch_steps = max(1, train // config.data.train_batch_size)
    steps = config.trainer.total_training_steps or config.trainer.total_epochs * epoch_steps
    seconds = {
        "sft": _START_S + traces * _SAMPLES_PER_TRACE * times.sample_s,
        "filter": _START_S + min(train, plan.filter.questions or train) * times.question_s,
        "grpo": _START_S + steps * times.step_s,
    }
    if plan.grpo.skip:
        del seconds["filter"]  # its questions are for the reinforcement learning
    seconds = {step: value for step, value in seconds.items() if not getattr(plan, step).skip}
    for evaluation in evaluations(artifacts):
        questions = min(test, plan.evaluation.questions or test)
        episodes = questions * len(PROBES) if evaluation.has_card else questions
        seconds[evaluation.step] = _START_S + episodes * times.question_s / _FILTER_EPISODES
    return seconds


def duration_text(seconds: float) -> str:
    """Return a duration as text, in the unit that suits it: `40 s`, `12 min` or `3.5 h`."""
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
