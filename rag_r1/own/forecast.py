"""Estimates requests, tokens, cost and, where it was measured, the time of a plan before it starts.

The requests to the teacher and the reader are the most that there can be: every kind gets all its questions,
each passes all checks, and each trace has all its turns. So a run costs less. Steps that are done are left
out. The time of the trainings was measured for the smallest models on two cores only (sizes.py); for others
the forecast says so, and each step prints its time."""

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
from rag_r1.own.sizes import size_of
from rag_r1.questions.documents import PassagePool, read_pool
from rag_r1.questions.forecast import forecast, forecast_lines
from rag_r1.questions.prompts import Prompts
from rag_r1.questions.seeds import MULTI_HOP, Seed
from rag_r1.questions.spec import QuestionsSpec
from rag_r1.rollouts.requests import read_questions
from rag_r1.runs.errors import RunError
from rag_r1.runs.response_cache import Usage
from rag_r1.runs.steps import PipelineFolder
from rag_r1.tools.documents.corpus import index_folder

#: Assumed tokens of a trace: of the prompt with the protocol's instruction, of a turn, of an observation.
_PROMPT_TOKENS, _TURN_TOKENS, _OBSERVATION_TOKENS = 600, 120, 600
#: Most passages from which questions are written, as `rag-r1 questions` has it by default.
_MAX_PASSAGES = 100_000
#: Assumed seconds in which a server of models answers a request.
_ANSWER_S = 3.0
#: How often a search card has each question played.
_CARD_EPISODES = 6
#: Assumed number of SFT samples in a trace, and seconds until vLLM and a training have started.
_SAMPLES_PER_TRACE, _START_S = 2.7, 60.0


@dataclass(frozen=True)
class Forecast:
    """The most that a plan takes. `train`, `test`: numbers of questions; `teacher`, `reader`: their usage;
    `cost`: of both, in the currency of the prices; `lines`: the forecast in words."""

    train: int
    test: int
    teacher: Usage
    reader: Usage
    cost: float
    lines: tuple[str, ...]


def forecast_of(artifacts: OwnArtifacts, folder: PipelineFolder) -> Forecast:
    """The forecast of a plan that has been checked, for the steps that are not done in `folder`. Raises
    RunError."""
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
        pool = _pool(artifacts)
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
        lines.append(_traces_line(plan, traces))
    cost = _cost(plan, teacher, reader)
    if cost:
        lines.append(f"cost: at most {cost:.4g}" + _limit_text(plan, cost))
    lines += _time_lines(artifacts, folder, (train, test), teacher, reader)
    return Forecast(train, test, teacher, reader, cost, tuple(lines))


def _pool(artifacts: OwnArtifacts) -> PassagePool:
    """The passages from which questions are written: of the corpus, or, if no start has made it yet, of one
    that is made here and deleted again. Raises RunError."""
    documents, questions = artifacts.plan.documents, artifacts.plan.questions
    with TemporaryDirectory() as temp:
        corpus = artifacts.corpus
        if documents.folder is not None and not all(path.is_file() for path in corpus):
            folder = Path(documents.folder)
            corpus = [index_folder(folder, Path(temp), skip_bad_files=documents.skip_bad_files)]
        try:
            return read_pool(corpus, artifacts.plan.run.seed, questions.test_share, _MAX_PASSAGES)
        except DataError as error:
            raise RunError(str(error)) from error


def max_seeds(spec: QuestionsSpec, pool: PassagePool) -> list[Seed]:
    """As many seeds as there can be. Their passages are taken in the order of the corpus, since only the
    number of their tokens matters here."""
    passages = pool.passages
    seeds = []
    for kind in spec.kinds:
        size = 2 if kind in MULTI_HOP else 1
        count = min(spec.per_kind, len(passages)) if len(passages) >= size else 0
        for number in range(count):
            seed_passages = tuple(islice(cycle(passages), number * size, (number + 1) * size))
            seeds.append(Seed(f"{kind}-{number}", kind, seed_passages))
    return seeds


def trace_usage(artifacts: OwnArtifacts, questions: int) -> Usage:
    """The most that the traces of this number of training questions use."""
    plan = artifacts.plan
    turns = artifacts.episodes.max_turns + 1  # the last one answers
    episodes = min(questions, plan.traces.questions or questions) * plan.traces.samples
    tokens = sum(_PROMPT_TOKENS + turn * (_TURN_TOKENS + _OBSERVATION_TOKENS) for turn in range(turns))
    return Usage(episodes * turns, episodes * tokens, episodes * turns * _TURN_TOKENS)


def _own_counts(plan: OwnPlan) -> tuple[int, int]:
    """The numbers of the user's own questions, for training and held out."""
    files = (plan.questions.train, plan.questions.test)
    train, test = (len(read_questions(paths, plan.protocol).rows) if paths else 0 for paths in files)
    return train, test


def _cost(plan: OwnPlan, teacher: Usage, reader: Usage) -> float:
    """The cost of both models; a plan without a reader has the teacher read at its prices."""
    reading = plan.reading if plan.writes_questions else None
    prices = plan.teacher if reading is None else reading
    teacher_cost = teacher.cost(plan.teacher.price_in, plan.teacher.price_out)
    return teacher_cost + reader.cost(prices.price_in, prices.price_out)


def _limit_text(plan: OwnPlan, cost: float) -> str:
    limit = plan.teacher.max_cost
    return "" if limit is None or cost <= limit else f"; teacher.max_cost {limit:g} may end the run before"


def _traces_line(plan: OwnPlan, usage: Usage) -> str:
    return (
        f"  traces of {plan.teacher.model}: at most {usage.requests:,} requests, about "
        f"{usage.prompt_tokens:,} prompt tokens and {usage.completion_tokens:,} generated tokens"
    )


def _time_lines(
    artifacts: OwnArtifacts, folder: PipelineFolder, counts: tuple[int, int], teacher: Usage, reader: Usage
) -> Iterator[str]:
    """Yields lines about the time of teacher and reader, and of the other steps."""
    plan = artifacts.plan
    requests = teacher.requests + reader.requests
    if requests:
        seconds = requests * _ANSWER_S / plan.teacher.in_flight
        yield f"time of teacher and reader: about {minutes(seconds)}, if a request takes {_ANSWER_S:g} s"
    times = size_of(str(plan.policy.model)).times if plan.policy.platform == "cpu" else None
    if plan.trains and times is None:
        yield "time of the trainings: not measured for this model on this platform; each step prints its own"
    elif times is not None and plan.policy.url is None:
        yield f"time of the rest: about {minutes(_training_s(artifacts, folder, counts, times))} on two cores"


def _training_s(
    artifacts: OwnArtifacts,
    folder: PipelineFolder,
    counts: tuple[int, int],
    times: tuple[float, float, float],
) -> float:
    """Seconds of trainings, filter and evaluations of a model whose times are known."""
    plan, config = artifacts.plan, artifacts.episodes.config
    (train, test), (sample_s, question_s, step_s) = counts, times
    traces = min(train, plan.traces.questions or train) * plan.traces.samples
    steps = plan.grpo.steps or config.trainer.total_training_steps or 0
    seconds = {
        "sft": _START_S + traces * _SAMPLES_PER_TRACE * sample_s,
        "filter": _START_S + min(train, plan.filter.questions or train) * question_s,
        "grpo": _START_S + steps * step_s,
    }
    skipped = {name for name in seconds if getattr(plan, name).skip or folder.seconds(name) is not None}
    for evaluation in evaluations(artifacts):
        questions = min(test, plan.evaluation.questions or test)
        episodes = questions * _CARD_EPISODES if evaluation.has_card else questions
        seconds[evaluation.step] = _START_S + episodes * question_s / 4  # a question is not replayed
        skipped |= {evaluation.step} if folder.seconds(evaluation.step) is not None else set()
    return sum(value for name, value in seconds.items() if name not in skipped)


def minutes(seconds: float) -> str:
    """A time in words: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
