"""Runs `rag-r1 questions`: draws seeds, requests drafts, verifies them and writes the files.

The teacher writes all drafts first. Each draft then goes through the checks, the cheap ones first, until one
refuses it. Replies and search results are recorded in the run's folder before they are used, and everything
else is computed from them. An interrupted run can therefore be resumed: it repeats only the requests that
were in flight, and ends with the same files. A draft for which a server did not answer stays open, and is
continued when the command is run again. If a run is stopped early (by `--max-cost`, or because an API key is
refused), the files contain all questions whose replies are recorded until then.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from rag_r1.data.files.near_duplicates import require_library
from rag_r1.inference.client import EngineFailure
from rag_r1.protocols import Protocol, load_with_prompt
from rag_r1.questions.drafts import Draft, Outcome
from rag_r1.questions.forecast import forecast, forecast_lines
from rag_r1.questions.models import Reader, Teacher, open_endpoint, prompts_of
from rag_r1.questions.passages.documents import PassagePool, SourcePassage, read_pool
from rag_r1.questions.passages.links import Links
from rag_r1.questions.prompts import Prompts
from rag_r1.questions.readings import CHECKS, REVIEW
from rag_r1.questions.results.card import card_of, write_card
from rag_r1.questions.results.duplicates import without_duplicates
from rag_r1.questions.results.rows import write_files
from rag_r1.questions.rules import refused_by_rule, unreachable
from rag_r1.questions.search import (
    QUERY_CHARS,
    JournaledSearch,
    SearchFailedError,
    check_corpus,
    neighbours_of,
    retriever_of,
)
from rag_r1.questions.seeds import Seed, SeedPlan
from rag_r1.questions.spec import QuestionsSpec
from rag_r1.rollouts.concurrency import Job, JobPool, without_waiting
from rag_r1.rollouts.provenance_facts import describe_server, index_identity
from rag_r1.runs.cancel_token import CancelToken
from rag_r1.runs.errors import RunError
from rag_r1.runs.folder import RunFolder
from rag_r1.runs.response_cache import ResponseCache, Usage

#: Number of concurrent searches, each of which is one request.
_SEARCH_CONCURRENCY = 32

Result = TypeVar("Result")
#: Prints a line.
Say = Callable[[str], None]


@dataclass(frozen=True)
class QuestionsResult:
    """The result of a run."""

    outcomes: list[Outcome]
    #: The contents of `data_card.json`.
    card: dict[str, Any]
    #: Why the run was stopped early; None if it was not.
    stopped: str | None = None


async def write_questions(
    spec: QuestionsSpec, say: Say = print, pool: PassagePool | None = None
) -> QuestionsResult:
    """Write and verify questions, or resume an interrupted run in the same folder.

    `say` prints the lines of the forecast. `pool` is the corpus, which is read here if it is None. Raises
    RunError for a problem that the user can solve, and OSError for a file that cannot be opened or written.
    """
    async with _open_run(spec, pool) as run:
        return run.finish(await run.verify_all(await run.drafts(await run.seeds(say))))


async def plan_questions(
    spec: QuestionsSpec, say: Say = print, pool: PassagePool | None = None
) -> list[Seed]:
    """Draw the seeds and print the forecast, without a request to a model.

    Nothing is written to `spec.out`. The arguments and errors are those of `write_questions`.
    """
    with TemporaryDirectory() as folder:
        async with _open_run(replace(spec, out=Path(folder)), pool) as run:
            return await run.seeds(say)


@asynccontextmanager
async def _open_run(spec: QuestionsSpec, pool: PassagePool | None) -> AsyncIterator[QuestionsRun]:
    """Open the run in its folder, locked until the `with` block ends. Raises RunError or OSError."""
    try:
        if spec.verification.similarity:
            require_library()
        protocol = load_with_prompt(spec.protocol, spec.prompt)
        pool = pool or read_corpus(spec)
    except ValueError as error:  # from the missing package, the protocol or the corpus
        raise RunError(str(error)) from error
    async with AsyncExitStack() as resources:
        yield await _open(spec, pool, protocol, resources)


async def _open(
    spec: QuestionsSpec, pool: PassagePool, protocol: Protocol, resources: AsyncExitStack
) -> QuestionsRun:
    """Open the folder, caches and journal of a run; `resources` closes them. Raises RunError or OSError."""
    config = retriever_of(spec)
    prompts = prompts_of(spec)
    settings = await asyncio.to_thread(run_settings, spec, pool, protocol)
    folder = resources.enter_context(RunFolder(spec.out, settings))
    reader_folder = folder.journal / "reader"
    reader_folder.mkdir(mode=0o700, exist_ok=True)
    cache = ResponseCache.open(reader_folder)
    resources.callback(cache.close)
    stop = CancelToken()
    search = JournaledSearch(config, folder.journal / "searches.ndjson", stop)
    resources.push_async_callback(search.close)
    return QuestionsRun(spec, pool, Links(pool), protocol, prompts, settings, folder, cache, search, stop)


def run_settings(spec: QuestionsSpec, pool: PassagePool, protocol: Protocol) -> dict[str, Any]:
    """Return all settings on which the questions depend, including what is read from files and the retrieval
    server. `protocol` has the prompt of the run. Raises RunError if the server does not answer."""
    config = retriever_of(spec)
    messages = "".join(message["content"] for message in protocol.messages("{question}"))
    served = index_identity(describe_server(config.base)["ready"])
    return {
        **spec.settings,
        "passages": pool.n_read,
        "corpus_sha256": pool.sha256,
        "prompts_sha256": prompts_of(spec).sha256,
        "prompt_sha256": hashlib.sha256(messages.encode()).hexdigest(),
        "retriever": {"topk": config.topk, "wire": config.wire, "served": served},
    }


def read_corpus(spec: QuestionsSpec) -> PassagePool:
    """Read the passages from which the questions of a run are written. Raises DataError."""
    return read_pool(spec.corpus, spec.seed, spec.test_share, spec.most_passages)


@dataclass
class QuestionsRun:
    """An open run. Its public methods are the phases, in their order."""

    spec: QuestionsSpec
    pool: PassagePool
    links: Links
    protocol: Protocol
    prompts: Prompts
    #: Everything on which the questions depend; a run can only be resumed with the same settings.
    settings: Mapping[str, Any]
    #: The folder of the run, whose cache has the teacher's replies.
    folder: RunFolder
    reader_cache: ResponseCache
    search: JournaledSearch
    stop: CancelToken

    async def seeds(self, say: Say) -> list[Seed]:
        """Draw the seeds, and print the forecast.

        Raises RunError if no seed can be drawn, or if the retrieval server has another corpus.
        """
        spec = self.spec
        await check_corpus(self.search, self.pool, spec.retriever_url)
        plan = SeedPlan(self.links, spec.kinds, spec.per_kind, spec.seed, spec.obscure_share)
        starts = plan.starts_needing_similar()
        jobs = [partial(self._similar, passage) for passage in starts]
        results = await self._run_jobs(jobs, "search", _SEARCH_CONCURRENCY)
        similar = {start.id: ids for start, ids in zip(starts, results, strict=True) if ids is not None}
        seeds = plan.draw(similar)
        if not seeds:
            raise RunError(
                "the corpus has no passages for these --kinds: give other kinds, or a larger corpus"
            )
        for line in forecast_lines(spec, seeds, *forecast(spec, seeds, self.prompts)):
            say(line)
        return seeds

    async def drafts(self, seeds: Sequence[Seed]) -> list[Outcome]:
        """Request a draft for each seed. The outcome of a seed is open if the teacher does not answer."""
        spec, cache = self.spec, self.folder.cache
        spent = self.reader_cache.usage.cost(spec.reading.price_in, spec.reading.price_out)
        async with open_endpoint(spec.teacher, spec.limits, cache, self.stop, spent) as endpoint:
            teacher = Teacher(spec.teacher, self.prompts, spec.temperature, endpoint, cache)
            jobs = [partial(_draft_or_open, teacher, seed) for seed in seeds]
            outcomes = await self._run_jobs(jobs, "draft", spec.limits.in_flight, endpoint.idle)
        return [outcome or Outcome(seed) for outcome, seed in zip(outcomes, seeds, strict=True)]

    async def verify_all(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Return the outcomes after all checks but that for duplicates; open if a server does not answer."""
        spec = self.spec
        spent = self.folder.cache.usage.cost(spec.teacher.price_in, spec.teacher.price_out)
        async with open_endpoint(spec.reading, spec.limits, self.reader_cache, self.stop, spent) as endpoint:
            reader = Reader(spec.reading, self.prompts, spec.verification, endpoint, self.reader_cache)
            jobs = [partial(self._verify, reader, outcome) for outcome in outcomes]
            checked = await self._run_jobs(jobs, "question", spec.limits.in_flight, endpoint.idle)
        return [verified or outcome for verified, outcome in zip(checked, outcomes, strict=True)]

    def finish(self, outcomes: Sequence[Outcome]) -> QuestionsResult:
        """Refuse duplicates, write the files and the data card, and return what was written. Raises OSError
        for a file that cannot be written."""
        spec = self.spec
        final = without_duplicates(outcomes, spec.verification.similarity)
        rows = write_files(spec.out, final, self.protocol, spec.source_name, spec.seed)
        usage: dict[str, tuple[Usage, float]] = {}
        caches = {"teacher": (spec.teacher, self.folder.cache), "reader": (spec.reading, self.reader_cache)}
        for name, (model, cache) in caches.items():
            usage[name] = cache.usage, cache.usage.cost(model.price_in, model.price_out)
        card = card_of(final, rows, self.settings, usage, self.stop.reason)
        write_card(spec.out, card)
        return QuestionsResult(final, card, self.stop.reason)

    async def _verify(self, reader: Reader, outcome: Outcome) -> Outcome:
        """Return the outcome of a draft after the checks. It stays open if a server does not answer."""
        draft = outcome.draft
        if draft is None:
            return outcome
        if reason := refused_by_rule(draft):
            return replace(outcome, reason=reason)
        try:
            if self.spec.verification.review and (refusal := await reader.refusal(REVIEW, draft)):
                return replace(outcome, reason=refusal.reason, detail=refusal.detail)
            reason, neighbours = await self._search_passages(draft)
            if reason:
                return replace(outcome, reason=reason)
            for check in CHECKS:
                if refusal := await reader.refusal(check, draft, neighbours):
                    return replace(outcome, reason=refusal.reason, detail=refusal.detail)
        except (EngineFailure, SearchFailedError) as error:
            return replace(outcome, detail=str(error))
        return replace(outcome, is_verified=True)

    async def _search_passages(self, draft: Draft) -> tuple[str | None, list[str]]:
        """Search for a draft's passages and their neighbours.

        Returns the reason for refusing the draft if its passages cannot be found (else None), and the texts
        of the neighbours. Those of a bridge include the passages to which the neighbours link by title, since
        another chain may end with another answer.
        """
        rules = self.spec.verification
        results = await self.search([draft.question, *(passage.query for passage in draft.passages)])
        ids = [[document.id for document in documents[: rules.topk]] for documents in results]
        neighbours = neighbours_of(draft.passages, results[0], results[1:], rules.neighbours)
        texts = [document.contents for document in neighbours]
        if draft.kind == "bridge":
            linked = self._linked_passages([document.id for document in neighbours], draft)
            texts += [passage.contents for passage in linked[: rules.neighbours]]
        return ("unreachable" if unreachable(draft, ids[0], ids[1:]) else None), texts

    def _linked_passages(self, ids: Sequence[str], draft: Draft) -> list[SourcePassage]:
        """Return what the passages with these ids link to by title, without these and the draft's own."""
        passages = [self.pool.by_id[id_] for id_ in ids if id_ in self.pool.by_id]
        targets = [
            link.target for passage in passages for link in self.links.of(passage) if link.kind == "title"
        ]
        known_ids = {*ids, *(passage.id for passage in draft.passages)}
        return [self.pool.by_id[id_] for id_ in dict.fromkeys(targets) if id_ not in known_ids]

    async def _similar(self, passage: SourcePassage) -> list[str]:
        """Search for similar passages; returns their ids, best first. Raises RunError if the search fails."""
        try:
            [documents] = await self.search([passage.contents[:QUERY_CHARS]])
        except SearchFailedError as error:
            raise RunError(f"a search has failed ({error}): run the same command again to go on") from error
        return [document.id for document in documents]

    async def _run_jobs(
        self,
        jobs: Sequence[Job[Result]],
        unit: str,
        in_flight: int,
        idle: Callable[[], Awaitable[None]] | None = None,
    ) -> list[Result | None]:
        """Run jobs concurrently, and return their results in order; None for those that `stop` prevented.

        `unit` is the noun of the progress bar, and `idle` waits until no request is open. A job that needs
        nothing but what is recorded is done in any case.
        """
        results: list[Result | None] = [None] * len(jobs)
        if jobs and self.stop.reason is None:
            results = await JobPool(in_flight, self.stop, idle).run(jobs, len(jobs), unit)
        pairs = zip(jobs, results, strict=True)
        return [await without_waiting(job) if result is None else result for job, result in pairs]


async def _draft_or_open(teacher: Teacher, seed: Seed) -> Outcome:
    """Request the draft of a seed. The outcome is open if the teacher does not answer."""
    try:
        return await teacher.draft(seed)
    except EngineFailure as error:
        return Outcome(seed, detail=str(error))
