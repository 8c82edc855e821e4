"""Measures whether `rag-r1 questions` refuses faulty questions for the right reason, and keeps good ones.

    python benchmarks/questions.py --work out --people 300 --places 60 --errors 0.03 [--late]

The corpus is the demo's invented world with copies of pages, common knowledge, and passages that are not in
the index (tests/fakes/question_world.py). Teacher and reader are processes that only see the requests
(tests/fakes/question_models.py): the teacher plants faults at a known rate, and a share (--errors) of the
reader's replies is wrong. With --late half of the faults are of kinds that were written after the
verification was frozen (tests/fakes/late_questions.py; third: tests/fakes/third_questions.py).

The teacher's log tells which fault a question has, and the corpus tells whether the world itself makes it
faulty (a rival, a copy, a lost passage). The yield, tokens and cost in the data card are compared with the
files and with the logs of the servers.
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
from rag_r1.questions.arguments import QuestionsArguments  # noqa: E402
from rag_r1.questions.command import make_questions  # noqa: E402
from rag_r1.rollouts.command_run import run_command  # noqa: E402
from rag_r1.runs.markdown import print_table  # noqa: E402
from tests.fakes.late_questions import LATE, plain, senses  # noqa: E402
from tests.fakes.question_facts import Facts  # noqa: E402
from tests.fakes.question_models import FAULTS, answer_by, model_process  # noqa: E402
from tests.fakes.question_world import WorldRetriever, is_lost, make_corpus  # noqa: E402
from tests.fakes.third_questions import THIRD  # noqa: E402

DUPLICATES = ("duplicate", "in_other_split")
#: All kinds of faults that were written after the verification was frozen.
ALL_LATE = LATE | THIRD
#: Least share of faulty questions that must be refused for the right reason: of all, and of the late kinds.
REFUSED_BAR, LATE_BAR = 0.95, 0.85
#: Largest share of good questions that may be lost.
LOST_BAR = 0.05
#: Role -> prices of a million prompt tokens and of a million completion tokens.
PRICES = {"teacher": (0.4, 1.2), "reader": (0.05, 0.15)}


@dataclass(frozen=True)
class Planted:
    """A draft with its planted fault and the verdict of the verification."""

    #: The fault, or `good`.
    fault: str
    #: The reasons for which it may be refused.
    right_reasons: tuple[str, ...]
    #: The reason for which it was refused; None if it was kept.
    reason: str | None

    @property
    def is_good(self) -> bool:
        """Whether the question has no fault."""
        return self.fault == "good"

    @property
    def is_judged_right(self) -> bool:
        """Whether it was kept although good, or refused for a right reason."""
        return self.reason is None if self.is_good else self.reason in self.right_reasons


def read_planted(rows: Sequence[dict[str, str]], log: Path, out: Path) -> list[Planted]:
    """Return the drafts with their faults and verdicts.

    `rows` is the corpus, `log` the teacher's log, and `out` the folder of the run. Seeds for which the
    teacher has no question are left out.
    """
    texts = {row["id"]: row["contents"] for row in rows}
    entries = {}
    for line in log.read_text().splitlines():
        entry = json.loads(line)
        if entry["fault"] not in ("transient", "declined"):
            entries[entry["kind"], tuple(entry["passages"])] = entry
    world = list(senses([row["contents"] for row in rows if not row["id"].endswith("-copy")]))
    judged, wordings, by_question = [], [], defaultdict[str, list[int]](list)
    for seed in outcomes(out):
        named = tuple(texts[name] for name in seed["passages"])
        entry = entries.get((seed["kind"], named)) or next(
            (  # a question that was kept although it names fewer passages than its seed has
                logged
                for logged in entries.values()
                if logged["question"] == seed.get("question", "") and set(named) < set(logged["passages"])
            ),
            None,
        )
        if entry is None:
            assert seed.get("reason"), "the teacher's log has every question that is kept"
            continue
        fault, right_reasons = fault_and_reasons(entry, world)
        if any(map(is_lost, entry["passages"])):
            fault = "not in the index" if fault == "good" else fault
            right_reasons = (*right_reasons, "unreachable")
        if fault == "good":
            by_question[question_key(plain(entry["question"]))].append(len(judged))
        judged.append(Planted(fault, right_reasons, seed.get("reason")))
        wordings.append(entry["question"])
    # If several questions have the same meaning, one is good and the others repeat it.
    for indices in by_question.values():
        refused = [index for index in indices if judged[index].reason in DUPLICATES]
        kept = [index for index in indices if judged[index].reason is None]
        for index in [*refused, *kept][: max(0, len(refused) + len(kept) - 1)]:
            is_literal = sum(wordings[index] == wordings[other] for other in indices) > 1
            fault = "duplicate" if is_literal else "paraphrase"
            judged[index] = Planted(fault, DUPLICATES, judged[index].reason)
    return judged


def outcomes(out: Path) -> Iterator[dict[str, Any]]:
    """Yield every seed that was kept or refused; a refused one has a `reason`."""
    for name in ("questions.jsonl", "refused.jsonl"):
        for line in (out / name).read_text().splitlines():
            seed = json.loads(line)
            yield {"passages": seed.get("passages") or seed["supporting_ids"], **seed}


def fault_and_reasons(entry: dict[str, Any], world: Sequence[Facts]) -> tuple[str, tuple[str, ...]]:
    """Return the fault of a question in this world, and the reasons for which it may be refused.

    `world` has the facts for each sense of the names. A question with a rival is ambiguous even if that was
    not planted, and one that was planted as ambiguous is good if it has no rival.
    """
    fault, about = entry["fault"] or "good", Facts.of(entry["passages"][:1])
    name = next(iter(about.kinds), "")
    if fault in ("good", "ambiguous") and (entry["kind"] == "two_facts" or fault == "ambiguous"):
        relations = ("year",) if fault == "ambiguous" else ("trade", "birthplace", "year")
        attributes = {relation: about.get(relation, name) or "" for relation in relations}
        fault = "ambiguous" if any(len(facts.having(**attributes)) > 1 for facts in world) else "good"
    if fault == "ambiguous_chain":
        people = world[0].having(trade=about.get("trade", name) or "", year=about.get("year", name) or "")
        rivers = {world[0].get("river", world[0].get("birthplace", person)) for person in people}
        fault = fault if len(rivers) > 1 else "good"
    right_reasons = (FAULTS | ALL_LATE).get(fault, ())
    if fault in ("malformed", "refusal", "strange_reply", "odd_reply"):
        return fault, right_reasons
    # Two senses of a name may give different answers.
    answers = {answer_by(entry["question"], facts) for facts in world} - {None}
    if len(answers) > 1 and fault != "ambiguous":
        return ("namesake" if fault == "good" else fault), (*right_reasons, *LATE["namesake"])
    return fault, right_reasons


def report(judged: Sequence[Planted]) -> tuple[float, float | None, float]:
    """Print the table of faults and the shares.

    Returns the share of faulty questions that were refused for a right reason, the same share of the late
    kinds (None if there are none), and the share of good questions that were lost.
    """
    by_fault = defaultdict[str, list[Planted]](list)
    for draft in judged:
        by_fault[draft.fault].append(draft)
    rows = []
    for fault, drafts in sorted(by_fault.items(), key=lambda item: (item[0] in ALL_LATE, item[0])):
        wrong = Counter(draft.reason or "kept" for draft in drafts if not draft.is_judged_right)
        otherwise = ", ".join(f"{count} {reason}" for reason, count in wrong.most_common())
        name = f"{fault} (late)" if fault in ALL_LATE else fault
        rows.append((name, len(drafts), len(drafts) - wrong.total(), otherwise or "–"))
    print_table(("planted", "drafts", "as it should be", "otherwise"), rows, "lrrl")
    faulty = [draft for draft in judged if not draft.is_good]
    late = [draft for draft in faulty if draft.fault in ALL_LATE]
    if late:
        print_faulty("late", late)
        shares = [share_right(drafts) for fault, drafts in by_fault.items() if fault in ALL_LATE]
        print(f"late, each kind counted the same: {sum(shares) / len(shares):.1%} of {len(shares)} kinds")
    print_faulty("faulty", faulty)
    good = [draft for draft in judged if draft.is_good]
    lost = sum(draft.reason is not None for draft in good) / len(good) if good else 0.0
    print(f"good: {len(good):,}, {lost:.1%} lost")
    return share_right(faulty), share_right(late) if late else None, lost


def share_right(drafts: Sequence[Planted]) -> float:
    """Return the share of drafts with a right verdict; 1 if there are no drafts."""
    return sum(draft.is_judged_right for draft in drafts) / len(drafts) if drafts else 1.0


def print_faulty(name: str, faulty: Sequence[Planted]) -> None:
    """Print the number of faulty drafts, the share with a right verdict, and the number that was kept."""
    kept = sum(draft.reason is None for draft in faulty)
    print(f"{name}: {len(faulty):,}, {share_right(faulty):.1%} refused for the right reason, {kept} kept")


def print_card(work: Path, judged: Sequence[Planted]) -> bool:
    """Print the data card's yield and cost beside those of the files and logs; returns whether they agree."""
    card = json.loads((work / "run" / "data_card.json").read_text())
    seeds = list(outcomes(work / "run"))
    kept = sum(not seed.get("reason") for seed in seeds)
    reasons = Counter(seed["reason"] for seed in seeds if seed.get("reason"))
    is_true = card["refused"] == reasons and card["yield"] == round(kept / len(seeds), 4)
    wrong = sum(draft.reason is None and not draft.is_good for draft in judged)
    right = (kept - wrong) / len(seeds)
    print(f"yield: {card['yield']:.2%} in the card, {kept / len(seeds):.2%} in the files, {right:.2%} good")
    for role, prices in PRICES.items():
        log = [json.loads(line) for line in (work / f"{role}.log").read_text().splitlines()]
        names = ("prompt_tokens", "completion_tokens")
        tokens = [sum(entry[name] for entry in log) for name in names]
        cost = sum(count * price for count, price in zip(tokens, prices, strict=True)) / 1e6
        used = card["usage"][role]
        is_true &= [used["requests"], *(used[name] for name in names)] == [len(log), *tokens]
        is_true &= used["cost"] == round(cost, 6)
        print(f"{role}: cost {used['cost']:.6f} in the card, {cost:.6f} by {len(log):,} replies in its log")
    return is_true


def main() -> int:
    """Run the benchmark and print its table.

    Returns 0 if all bars are reached and the card is right, 1 if not, and the command's status if it fails.
    """
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for the corpus, the logs and the run"
    )
    parser.add_argument("--people", type=int, default=300, help="of the world (default %(default)s)")
    parser.add_argument("--places", type=int, default=60, help="of the world (default %(default)s)")
    parser.add_argument(
        "--errors", type=float, default=0.03, help="share of the reader's replies that are wrong"
    )
    parser.add_argument("--seed", type=int, default=0, help="of world and run (default %(default)s)")
    parser.add_argument(
        "--late",
        nargs="?",
        const="first",
        choices=["first", "again", "third"],
        help="with late kinds of faults; again: in wordings that were written after the repair of their "
        "rules; third: those that were written after the reader judged wordings",
    )
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    rows = make_corpus(args.seed, args.people, args.places, bool(args.late))
    corpus, log = args.work / "corpus.jsonl", args.work / "teacher.log"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    errors = ("--errors", str(args.errors))
    with (
        model_process("teacher", log, *(["--late", args.late] if args.late else [])) as teacher,
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
            price_in=PRICES["teacher"][0],
            price_out=PRICES["teacher"][1],
            reader_price_in=PRICES["reader"][0],
            reader_price_out=PRICES["reader"][1],
        )
        started = time.monotonic()
        status = run_command("rag-r1 questions", make_questions, arguments)
        seconds = time.monotonic() - started
    if status:
        return status
    print(f"{len(rows):,} passages; {seconds:.0f} s, {os.cpu_count()} cores")
    judged = read_planted(rows, log, args.work / "run")
    is_card_right = print_card(args.work, judged)
    refused, late, lost = report(judged)
    is_good = refused >= REFUSED_BAR and (late is None or late >= LATE_BAR) and lost <= LOST_BAR
    return 0 if is_good and is_card_right else 1


if __name__ == "__main__":
    sys.exit(main())
