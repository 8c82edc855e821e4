"""How many faulty questions `rag-r1 questions` refuses for the right reason, and how many good ones it loses.

    python benchmarks/questions.py --work out --people 300 --places 60 --errors 0.03

The corpus is the demo's invented world with copies of pages, sentences that everybody knows, and passages
that are not in the index (tests/fakes/question_world.py). Teacher and reader are processes that see the
requests only (tests/fakes/question_models.py): the teacher plants faults at a known rate, the reader errs in
a share (--errors) of its replies. Which fault a question has is known from the teacher's log, and what the
world makes of it (a rival, a copy, a lost passage) from the corpus.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rag_r1.data.files.duplicates import question_key  # noqa: E402
from rag_r1.questions.command import QuestionsArguments, make_questions  # noqa: E402
from rag_r1.rollouts.command_run import run_command  # noqa: E402
from rag_r1.runs.markdown import print_table  # noqa: E402
from tests.fakes.question_models import FAULTS, Facts, model_process  # noqa: E402
from tests.fakes.question_world import WorldRetriever, is_lost, make_corpus  # noqa: E402

DUPLICATES = ("duplicate", "in_other_split")
#: Smallest share of faulty questions that are refused for the right reason, largest share of good ones lost.
BARS = (0.95, 0.05)


@dataclass(frozen=True)
class Planted:
    """A draft as it was planted: its `fault` (`good` for none) and the reasons for which it may be refused;
    and the reason for which it was, None if it was kept."""

    fault: str
    right: tuple[str, ...]
    reason: str | None

    @property
    def is_good(self) -> bool:
        return self.fault == "good"

    @property
    def is_as_it_should(self) -> bool:
        return self.reason is None if self.is_good else self.reason in self.right


def planted(rows: Sequence[dict[str, str]], log: Path, out: Path) -> list[Planted]:
    """What was planted, and what became of it. Seeds of which the teacher has no question are left out."""
    texts = {row["id"]: row["contents"] for row in rows}
    entries = {}
    for line in log.read_text().splitlines():
        entry = json.loads(line)
        if entry["fault"] not in ("transient", "declined"):
            entries[entry["kind"], tuple(entry["passages"])] = entry
    facts = Facts.of([row["contents"] for row in rows if not row["id"].endswith("-copy")])
    judged, by_question = [], defaultdict[str, list[int]](list)
    for seed in outcomes(out):
        entry = entries.get((seed["kind"], tuple(texts[name] for name in seed["passages"])))
        if entry is None:
            continue
        fault, right = fault_and_reasons(entry, facts)
        if any(map(is_lost, entry["passages"])):
            fault, right = ("not in the index" if fault == "good" else fault), (*right, "unreachable")
        if fault == "good":
            by_question[question_key(entry["question"])].append(len(judged))
        judged.append(Planted(fault, right, seed.get("reason")))
    # Of the questions with one wording, one is good, and the others repeat it.
    for places in by_question.values():
        refused = [place for place in places if judged[place].reason in DUPLICATES]
        kept = [place for place in places if judged[place].reason is None]
        for place in [*refused, *kept][: max(0, len(refused) + len(kept) - 1)]:
            judged[place] = Planted("duplicate", DUPLICATES, judged[place].reason)
    return judged


def outcomes(out: Path) -> Iterator[dict[str, Any]]:
    """Every seed that was kept or refused."""
    for name in ("questions.jsonl", "refused.jsonl"):
        for line in (out / name).read_text().splitlines():
            seed = json.loads(line)
            yield {"passages": seed.get("passages") or seed["supporting_ids"], **seed}


def fault_and_reasons(entry: dict[str, Any], facts: Facts) -> tuple[str, tuple[str, ...]]:
    """The fault of a question in this world: one with a rival is ambiguous even if nobody planted that, and
    one without a rival is good."""
    fault, about = entry["fault"] or "good", Facts.of(entry["passages"][:1])
    name = next(iter(about.kinds), "")
    if fault in ("good", "ambiguous") and (entry["kind"] == "two_facts" or fault == "ambiguous"):
        relations = ("year",) if fault == "ambiguous" else ("trade", "birthplace", "year")
        rivals = facts.having(**{relation: about.get(relation, name) or "" for relation in relations})
        fault = "ambiguous" if len(rivals) > 1 else "good"
    if fault == "ambiguous_chain":
        people = facts.having(trade=about.get("trade", name) or "", year=about.get("year", name) or "")
        rivers = {facts.get("river", facts.get("birthplace", person)) for person in people}
        fault = fault if len(rivers) > 1 else "good"
    return fault, FAULTS.get(fault, ())


def report(judged: Sequence[Planted]) -> tuple[float, float]:
    """Print the table; returns the share of faulty questions that are refused for the right reason, and of
    good ones that are lost."""
    rows = []
    for fault in sorted({one.fault for one in judged}):
        own = [one for one in judged if one.fault == fault]
        wrong = Counter(one.reason or "kept" for one in own if not one.is_as_it_should)
        otherwise = ", ".join(f"{count} {reason}" for reason, count in wrong.most_common())
        rows.append((fault, len(own), len(own) - wrong.total(), otherwise or "–"))
    print_table(("planted", "drafts", "as it should be", "otherwise"), rows, "lrrl")
    faulty = [one for one in judged if not one.is_good]
    good = [one for one in judged if one.is_good]
    refused = sum(one.is_as_it_should for one in faulty) / len(faulty)
    lost = sum(one.reason is not None for one in good) / len(good)
    kept = sum(one.reason is None for one in faulty)
    print(f"faulty: {len(faulty):,}, {refused:.1%} refused for the right reason, {kept} kept")
    print(f"good: {len(good):,}, {lost:.1%} lost")
    return refused, lost


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for the corpus, the logs and the run"
    )
    parser.add_argument("--people", type=int, default=300)
    parser.add_argument("--places", type=int, default=60)
    parser.add_argument(
        "--errors", type=float, default=0.03, help="share of the reader's replies that are wrong"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    rows = make_corpus(args.seed, args.people, args.places)
    corpus, log = args.work / "corpus.jsonl", args.work / "teacher.log"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    errors = ("--errors", str(args.errors))
    with (
        model_process("teacher", log) as teacher,
        model_process("reader", args.work / "reader.log", *errors) as reader,
        WorldRetriever(rows) as retriever,
    ):
        arguments = QuestionsArguments(
            corpus=[corpus],
            out=args.work / "run",
            base_url=teacher,
            teacher_model="scripted",
            reader_url=reader,
            reader_model="scripted",
            retriever_url=retriever.url,
            per_kind=len(rows),
            seed=args.seed,
            obscure=0.5,
            in_flight=16,
        )
        started = time.monotonic()
        status = run_command("rag-r1 questions", make_questions, arguments)
        seconds = time.monotonic() - started
    if status:
        return status
    print(f"{len(rows):,} passages; {seconds:.0f} s, {os.cpu_count()} cores")
    refused, lost = report(planted(rows, log, args.work / "run"))
    return 0 if refused >= BARS[0] and lost <= BARS[1] else 1


if __name__ == "__main__":
    sys.exit(main())
