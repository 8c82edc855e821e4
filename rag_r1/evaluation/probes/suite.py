"""`rag-r1 eval --card`: runs the suite of probes, to see whether a policy searches or knows.

The questions of an evaluation are played once more under each probe (rag_r1/probes/probes.py), with the same
settings as in the real run:

    OUT/real, OUT/closed_book, OUT/empty, OUT/random, OUT/gold, OUT/withheld
                         one run each, as `rag-r1 eval` makes it: records, provenance, report
    OUT/search_card.json, .md, .png
                         the EM of each condition with its interval, and the verdict (metrics.py)
    OUT/passages.json    the passages that the probes show (rag_r1/probes/passages.py)

`random` needs the corpus. `gold` needs the texts of the gold passages, from the corpus or, if the data set
names them by id, from the retrieval server. Questions that name no gold passages are left out of `gold` and
`withheld`, and questions with a gold passage that is not found are left out of `gold`; the card counts both.
A condition that cannot be played is left out, and the card gives the reason. The same command resumes an
interrupted suite.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rag_r1.corpus.reader import Corpus
from rag_r1.data.evidence import GoldEvidence
from rag_r1.data.rows import QuestionRow
from rag_r1.evaluation.baselines import Condition
from rag_r1.evaluation.condition_run import run_condition
from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.evaluation.probes.collect import RANDOM_SAMPLE_SIZE, find_passages
from rag_r1.evaluation.probes.markdown import markdown, table_lines
from rag_r1.evaluation.probes.metrics import ConditionRun, figures
from rag_r1.evaluation.probes.plots import draw_search_card
from rag_r1.evaluation.probes.served_passages import served_passages
from rag_r1.evaluation.probes.verdict import CONDITION_NAMES
from rag_r1.evaluation.report.report import WRONG_RUN
from rag_r1.evaluation.report.run_table import read_run
from rag_r1.io.atomic_files import write_json, write_text
from rag_r1.io.errors import DataError, error_text
from rag_r1.io.terminal_text import terminal_lines
from rag_r1.options.command_exit import ExitStatus
from rag_r1.probes import probes
from rag_r1.probes.passages import Passages
from rag_r1.probes.probes import Probe, ProbeAgent
from rag_r1.protocols import Document
from rag_r1.rollouts.provenance import Provenance
from rag_r1.rollouts.session import RunSetup
from rag_r1.runs.errors import RunError
from rag_r1.tools import RetrieverConfig, shared_tools
from rag_r1.tools.registry import DEFAULT_TOOL

CARD_JSON, CARD_MD, PASSAGES = "search_card.json", "search_card.md", "passages.json"

#: Reasons for which questions are left out of a condition.
_NO_EVIDENCE = "questions that name no gold passages"
_MISSING_GOLD = "questions of which a gold passage was not found"


@dataclass(frozen=True)
class ProbePlan:
    """The conditions to be played, and what is left out."""

    #: Each condition with the inputs of its run.
    conditions: list[tuple[Condition, RunSetup]] = field(default_factory=list)
    #: By condition and reason: the number of questions that are left out, None for the whole condition.
    left_out: dict[str, dict[str, int | None]] = field(default_factory=dict)


async def make_search_card(args: EvalArguments, run_setup: RunSetup, passages: Passages) -> int:
    """Play all conditions into subfolders of `args.out` and write the card. Returns DONE, or the status of
    the first run that ended otherwise.

    `args.base_url` must name the model's server. `passages` is the result of `gather_passages`. Raises the
    errors of `run_condition`."""
    plan = plan_conditions(run_setup, passages)
    for number, (condition, condition_setup) in enumerate(plan.conditions, 1):
        print(f"{number}/{len(plan.conditions)} {CONDITION_NAMES[condition.name]}")
        if status := await run_condition(args, condition_setup, condition, args.out / condition.name):
            return status
    names = [condition.name for condition, _ in plan.conditions]
    card = write_card(args.out, names, run_setup.questions.rows, plan.left_out)
    for line in (*card["sentences"], "", *table_lines(card), "", f"card: {args.out / CARD_MD}"):
        print(line)
    return ExitStatus.DONE


def gather_passages(args: EvalArguments, run_setup: RunSetup) -> Passages:
    """Return the gold and the random passages that the corpus has, or without --corpus the gold passages that
    the retrieval server has. Raises RunError if they cannot be read, and OSError if passages.json cannot be
    written."""
    gold = [evidence for row in run_setup.questions.rows if (evidence := GoldEvidence.of(row.metadata))]
    if not args.corpus:
        options = {key: value for key, value in run_setup.retriever.items() if key != "tool"}
        uses_server = (run_setup.retriever.get("tool") or DEFAULT_TOOL) == DEFAULT_TOOL
        if uses_server and any(evidence.ids for evidence in gold):
            return served_passages(RetrieverConfig.from_config(options).base, gold)
        return Passages()
    try:
        passages, bad = find_passages(
            Corpus(args.corpus),
            gold,
            args.out / PASSAGES,
            sample_size=RANDOM_SAMPLE_SIZE,
            seed=args.seed,
            skip_bad_rows=args.skip_bad_rows,
        )
    except DataError as error:
        raise RunError(str(error)) from error
    for line in bad.left_out():
        print(terminal_lines(line), file=sys.stderr)
    return passages


def plan_conditions(run_setup: RunSetup, passages: Passages) -> ProbePlan:
    """Return the conditions that can be played with the questions and the passages."""
    rows = run_setup.questions.rows
    topk = probes.topk_of(run_setup.retriever)
    deeper_setup = _with_deeper_search(run_setup, topk)
    agent = ProbeAgent(run_setup.setup, deeper_setup.setup, topk, passages)
    evidence = {row.id: agent.evidence(row.metadata, row.golds) for row in rows}
    plan = ProbePlan()
    for name in probes.PROBES:
        if reason := _reason_not_to_play(name, evidence, agent):
            plan.left_out[name] = {reason: None}
            continue
        if exclusions := _count_exclusions(name, evidence.values()):
            plan.left_out[name] = exclusions
        condition_setup = deeper_setup if name in probes.NEED_GOLD else run_setup
        plan.conditions.append((_condition(name, agent, evidence), condition_setup))
    return plan


def _reason_not_to_play(name: Probe, evidence: Mapping[str, GoldEvidence], agent: ProbeAgent) -> str | None:
    """Return the reason for which a condition cannot be played at all; None if it can."""
    if name in probes.NEED_PASSAGES and not agent.topk:
        return "rag_r1.retriever.topk is not a number, so it is not known how many passages a search shows"
    if name == "random" and not probes.enough_random(agent.passages, evidence.values(), agent.topk):
        return "needs passages of the corpus: --corpus FILE"
    if name in probes.NEED_GOLD and not any(evidence.values()):
        return "no question names its gold passages (supporting_titles or supporting_ids)"
    if name == "gold" and not any(gold.passages for gold in evidence.values()):
        return "needs the text of the gold passages: --corpus FILE"
    return None


def _count_exclusions(name: Probe, evidence: Iterable[GoldEvidence]) -> dict[str, int | None]:
    """Return the number of questions that are left out of a condition, by reason."""
    excluded = [gold for gold in evidence if not probes.applies(name, gold)]
    return dict(sorted(Counter(_MISSING_GOLD if gold else _NO_EVIDENCE for gold in excluded).items()))


def _with_deeper_search(run_setup: RunSetup, topk: int) -> RunSetup:
    """Return the run's inputs with a search that fills top-k even if it leaves out gold passages."""
    retriever = probes.deeper_search(run_setup.retriever, topk)
    tools = partial(shared_tools, retriever, run_setup.config.tools)
    return replace(run_setup, retriever=retriever, setup=replace(run_setup.setup, tools=tools))


def _condition(name: Probe, agent: ProbeAgent, evidence: Mapping[str, GoldEvidence]) -> Condition:
    """Return the condition of a probe. `evidence` has the evidence of each question by its id."""
    options: dict[str, Any] = {}
    if name in probes.NEED_PASSAGES:  # a run is resumed only with the same passages
        gold, random_passages = ({}, agent.passages.random) if name == "random" else (evidence, [])
        options = {"passages_sha256": _passages_hash(gold, random_passages)}
    return Condition(
        name,
        lambda row: agent.under(name, row.id, evidence[row.id]),
        lambda row: probes.applies(name, evidence[row.id]),
        searches=name in ("real", *probes.NEED_GOLD),
        options=options,
    )


def _passages_hash(evidence: Mapping[str, GoldEvidence], random_passages: Sequence[Document]) -> str:
    """Return a hash of the passages that a condition shows or withholds: gold ones by their ids, which are
    unique in a corpus, and random ones with their texts."""
    golds = [
        [name, sorted(gold.ids), sorted(gold.titles), [passage.id for passage in gold.passages]]
        for name, gold in sorted(evidence.items())
    ]
    random_pairs = [[passage.id, passage.contents] for passage in random_passages]
    return hashlib.sha256(json.dumps([golds, random_pairs]).encode()).hexdigest()


def write_card(
    out: Path,
    names: Sequence[str],
    rows: Sequence[QuestionRow],
    left_out: Mapping[str, Mapping[str, int | None]],
) -> dict[str, Any]:
    """Write the card of the finished runs in `out`, and return the content of search_card.json.

    `names` are the conditions that were played, the real run first; `left_out` is that of the ProbePlan.
    Raises RunError if a run cannot be read, and OSError if a file cannot be written."""
    runs = {}
    try:
        provenances = {name: Provenance.read(out / name) for name in names}
        for name, provenance in provenances.items():
            mask = provenance.mask if provenance else None
            runs[name] = ConditionRun.of(read_run(out / name, mask=mask))
    except WRONG_RUN as error:
        raise RunError(f"the runs are complete, but not the card: {error_text(error)}") from error
    real = provenances[names[0]]
    card = {
        **figures(runs, rows),
        "left_out": {name: dict(reasons) for name, reasons in left_out.items()},
        "model": real.model.model_dump() if real else None,
        "protocol": real.protocol.name if real else None,
        "corpus_sha256": real.corpus_sha256 if real else None,
    }
    pictures = draw_search_card(card, out)
    write_json(out / CARD_JSON, card)
    write_text(out / CARD_MD, markdown(card, pictures) + "\n")
    return card
