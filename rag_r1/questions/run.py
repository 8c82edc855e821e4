"""Runs `rag-r1 questions`: seeds, drafts, verification, files. A run survives kills.

The teacher writes all drafts; then each draft goes through the checks, the cheap ones first, until one
refuses it. Replies and searches are kept in the journal of the run's folder before they are used, and
everything else follows from them. So a start that was killed asks nothing twice but what was under way, and
ends with the same files. A draft for which a server did not answer is open: the next start goes on with it.
If the run is stopped (--max-cost, a key that is refused), the files have what is kept so far.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rag_r1.inference.client import EngineFailure, key_of
from rag_r1.protocols import Protocol, load_with_prompt
from rag_r1.questions.card import card_of, write_card
from rag_r1.questions.documents import PassagePool, SourcePassage, read_pool
from rag_r1.questions.drafts import Draft, Outcome
from rag_r1.questions.forecast import forecast, forecast_lines
from rag_r1.questions.links import Links
from rag_r1.questions.models import Reader, Teacher, open_endpoint
from rag_r1.questions.prompts import Prompts
from rag_r1.questions.readings import CHECKS, STANDALONE
from rag_r1.questions.rows import without_duplicates, write_files
from rag_r1.questions.rules import refused_by_rule, unreachable
from rag_r1.questions.search import JournaledSearch, SearchFailedError, neighbours_of
from rag_r1.questions.seeds import Seed, SeedPlan
from rag_r1.questions.spec import QuestionsSpec
from rag_r1.rollouts.concurrency import JobPool
from rag_r1.rollouts.provenance_facts import describe_server, index_identity
from rag_r1.runs.cancel_token import CancelToken
from rag_r1.runs.errors import RunError
from rag_r1.runs.folder import RunFolder
from rag_r1.runs.response_cache import ResponseCache, Usage
from rag_r1.tools.retrieval.options import RetrieverConfig

#: Searches at the same time; each has one request.
_SEARCH_CONCURRENCY = 32
#: Characters of a passage with which similar ones are searched.
_QUERY_CHARS = 300
#: Passages that are searched to see whether the server has this corpus.
_PROBE_PASSAGES = 5
#: Passages that a search returns beyond the neighbours that are shown: the draft's own are among them.
_EXTRA_PASSAGES = 6

Say = Callable[[str], None]


@dataclass(frozen=True)
class QuestionsResult:
    """The result of a run. `card`: the contents of `data_card.json`; `stopped`: why the run was stopped
    before its end."""

    outcomes: list[Outcome]
    card: dict[str, Any]
    stopped: str | None = None


async def write_questions(spec: QuestionsSpec, say: Say = print) -> QuestionsResult:
    """Write and verify questions, or go on with them. `say` prints the lines of the forecast. Raises
    RunError for what a user can mend."""
    async with _open_run(spec) as run:
        outcomes = await run.drafts(await run.seeds(say))
        if run.stop.reason is None:
            outcomes = await run.verify_all(outcomes)
        return run.finish(outcomes)


async def plan_questions(spec: QuestionsSpec, say: Say = print) -> list[Seed]:
    """Draw the seeds, and print the forecast by `say`, without a request to a model. Raises RunError."""
    async with _open_run(spec) as run:
        return await run.seeds(say)


@asynccontextmanager
async def _open_run(spec: QuestionsSpec) -> AsyncIterator[QuestionsRun]:
    """The run in its folder, which is held while the block runs."""
    try:
        protocol = load_with_prompt(spec.protocol, spec.prompt)
        pool = read_pool(spec.corpus, spec.seed, spec.test_share, spec.most_passages)
    except ValueError as error:  # of the protocol, of the corpus
        raise RunError(str(error)) from error
    async with AsyncExitStack() as opened:
        yield await _open(spec, pool, protocol, opened)


async def _open(
    spec: QuestionsSpec, pool: PassagePool, protocol: Protocol, opened: AsyncExitStack
) -> QuestionsRun:
    """Open the folder of the run, its journal and its caches, which are closed with `opened`. Raises
    RunError."""
    config = retriever_of(spec)
    served = index_identity((await asyncio.to_thread(describe_server, config.base))["ready"])
    prompts = Prompts(key_of(model.key_variable) for model in (spec.teacher, spec.reading))
    messages = "".join(message["content"] for message in protocol.messages("{question}"))
    settings = {
        **spec.settings,
        "passages": pool.n_read,
        "corpus_sha256": pool.sha256,
        "prompts_sha256": prompts.sha256,
        "prompt_sha256": hashlib.sha256(messages.encode()).hexdigest(),
        "retriever": {"topk": config.topk, "wire": config.wire, "served": served},
    }
    folder = opened.enter_context(RunFolder(spec.out, settings))
    reader_folder = folder.journal / "reader"
    reader_folder.mkdir(mode=0o700, exist_ok=True)
    cache = ResponseCache.open(reader_folder)
    opened.callback(cache.close)
    search = JournaledSearch(config, folder.journal / "searches.ndjson")
    opened.push_async_callback(search.close)
    return QuestionsRun(
        spec, pool, Links(pool), protocol, prompts, settings, folder, cache, search, CancelToken()
    )


def retriever_of(spec: QuestionsSpec) -> RetrieverConfig:
    """The options of the retrieval client. A search returns a few passages more than the neighbours that are
    shown, since the draft's own are among them."""
    rules = spec.verification
    topk = max(rules.topk, rules.neighbours + _EXTRA_PASSAGES)
    return RetrieverConfig(url=spec.retriever_url, wire=spec.wire, topk=topk, cache_size=0)


@dataclass
class QuestionsRun:
    """The parts of a run, and its phases in order. `reader_cache`: the reader's replies; the teacher's are in
    the folder's own cache."""

    spec: QuestionsSpec
    pool: PassagePool
    links: Links
    protocol: Protocol
    prompts: Prompts
    settings: Mapping[str, Any]
    folder: RunFolder
    reader_cache: ResponseCache
    search: JournaledSearch
    stop: CancelToken

    async def seeds(self, say: Say) -> list[Seed]:
        """Draw the seeds, and print the forecast. Raises RunError if there is none, or if the server has
        another corpus."""
        spec = self.spec
        await self._check_corpus()
        plan = SeedPlan(self.links, spec.kinds, spec.per_kind, spec.seed, spec.obscure_share)
        starts = plan.needs_similar()
        jobs = [partial(self._similar, passage) for passage in starts]
        results = await self._jobs(jobs, "search", _SEARCH_CONCURRENCY)
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
        """Request a draft for each seed; an outcome is open where the teacher has not answered."""
        spec, cache = self.spec, self.folder.cache
        async with open_endpoint(spec.teacher, spec.limits, cache, self.stop) as endpoint:
            teacher = Teacher(spec.teacher, self.prompts, spec.temperature, endpoint, cache)
            jobs = [partial(_or_open, teacher.draft, seed) for seed in seeds]
            outcomes = await self._jobs(jobs, "draft", spec.limits.in_flight, endpoint.idle)
        return [outcome or Outcome(seed) for outcome, seed in zip(outcomes, seeds, strict=True)]

    async def verify_all(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Put the drafts through all checks but that of duplicates."""
        spec = self.spec
        spent = self.folder.cache.usage.cost(spec.teacher.price_in, spec.teacher.price_out)
        async with open_endpoint(spec.reading, spec.limits, self.reader_cache, self.stop, spent) as endpoint:
            reader = Reader(spec.reading, self.prompts, spec.verification, endpoint, self.reader_cache)
            jobs = [partial(self._verify, reader, outcome) for outcome in outcomes]
            checked = await self._jobs(jobs, "question", spec.limits.in_flight, endpoint.idle)
        pairs = zip(checked, outcomes, strict=True)
        return [verified or outcome for verified, outcome in pairs]

    def finish(self, outcomes: Sequence[Outcome]) -> QuestionsResult:
        """Refuse duplicates, and write the files."""
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
        """The outcome of a draft after the checks; open if a server does not answer."""
        draft = outcome.draft
        if draft is None:
            return outcome
        if reason := refused_by_rule(draft):
            return replace(outcome, reason=reason)
        try:
            reason, neighbours = await self._search_passages(draft)
            if reason:
                return replace(outcome, reason=reason)
            for check in (*CHECKS, *([STANDALONE] if self.spec.verification.standalone else [])):
                if (detail := await reader.refuses(check, draft, neighbours)) is not None:
                    return replace(outcome, reason=check.reason, detail=detail)
        except (EngineFailure, SearchFailedError) as error:
            return replace(outcome, detail=str(error))
        return replace(outcome, is_verified=True)

    async def _search_passages(self, draft: Draft) -> tuple[str | None, list[str]]:
        """(reason why a draft's passages cannot be found, texts of their neighbours). The neighbours of a
        bridge include where these lead to, since another answer may stand at the end of another chain."""
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
        """The passages whose titles the passages with these ids name, each once, without the draft's own."""
        passages = [self.pool.by_id[name] for name in ids if name in self.pool.by_id]
        targets = [
            link.target for passage in passages for link in self.links.of(passage) if link.how == "title"
        ]
        known_ids = {*ids, *(passage.id for passage in draft.passages)}
        return [self.pool.by_id[name] for name in dict.fromkeys(targets) if name not in known_ids]

    async def _similar(self, passage: SourcePassage) -> list[str]:
        """The ids of similar passages, best first. Raises RunError if the search fails."""
        try:
            [documents] = await self.search([passage.contents[:_QUERY_CHARS]])
        except SearchFailedError as error:
            raise RunError(f"a search has failed ({error}): run the same command again to go on") from error
        return [document.id for document in documents]

    async def _check_corpus(self) -> None:
        """Raises RunError if a search finds no passage of this corpus."""
        probes = self.pool.passages[:_PROBE_PASSAGES]
        try:
            results = await self.search([passage.contents[:_QUERY_CHARS] for passage in probes])
        except SearchFailedError as error:
            raise RunError(
                f"the retrieval server does not answer ({error}): run the same command again"
            ) from error
        if not any(document.id in self.pool.by_id for documents in results for document in documents):
            raise RunError(
                f"--retriever-url {self.spec.retriever_url} finds no passage of --corpus: build the index "
                "of this corpus (`rag-r1 index build`) and serve it"
            )

    async def _jobs(
        self,
        jobs: Sequence[Callable[[], Awaitable[Any]]],
        unit: str,
        in_flight: int,
        idle: Callable[[], Awaitable[None]] | None = None,
    ) -> list[Any]:
        """The results of the jobs, in order; None for those that did not run because the run was stopped."""
        return await JobPool(in_flight, self.stop, idle).run(jobs, len(jobs), unit) if jobs else []


async def _or_open(draft: Callable[[Seed], Awaitable[Outcome]], seed: Seed) -> Outcome:
    """The draft of a seed, open if the teacher does not answer."""
    try:
        return await draft(seed)
    except EngineFailure as error:
        return Outcome(seed, detail=str(error))
