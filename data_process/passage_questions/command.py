"""`rag-r1 passage-questions`: makes questions from the passages of a corpus by rules.

    rag-r1 passage-questions --corpus corpus.jsonl.gz --out data/made

The rules are written for an encyclopedia, whose passages begin by saying what their page is about. There are
five kinds of questions: one_hop (a fact), bridge (a fact of the entity that a fact names), two_facts (the
entity that has two facts), comparison (which came first) and yes_no. Facts that disagree, names that two
pages share and questions with two right answers in the corpus are dropped.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field
from tqdm import tqdm

from data_process.passage_questions.ambiguity import Mentions, contains_answer
from data_process.passage_questions.entities import Links, clean, read_entities
from data_process.passage_questions.questions import KINDS, MadeQuestion, QuestionWriter, names_both
from data_process.passage_questions.splits import hash_words
from rag_r1.corpus.inputs import check_first_rows, passages_of
from rag_r1.corpus.reader import Corpus, Passage
from rag_r1.data.files.duplicates import question_key
from rag_r1.io.atomic_files import atomic_file, write_json, write_json_lines
from rag_r1.io.errors import DataError
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, Positive, argument, read_arguments
from rag_r1.options.out_folder import check_out, refuse_replaced
from rag_r1.options.settings_file import recorded_settings
from rag_r1.options.types import Constraint
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import CHECK_ONLY, StartChecks

COMMAND = "rag-r1 passage-questions"
EPILOG = """\
The output is train.jsonl and test.jsonl, with the question, all forms of its answer (golden_answers) and its
evidence (supporting_ids, supporting_titles); summary.json, with the counts and what each rule dropped; and
settings.yaml. No entity is in both files. `rag-r1 data --train questions:made=DIR/train.jsonl` reads them.
"""


class SplitQuestion(NamedTuple):
    """A question, and the split of its entities."""

    question: MadeQuestion
    split: str


class PassageQuestionsArguments(Arguments):
    """The corpus, the number of questions and their splits."""

    corpus: list[Path] = argument("corpus: .jsonl, .tsv (also .gz), .parquet, or a folder", ("FILE", ...))
    out: Path = argument("folder for train.jsonl and test.jsonl", "DIR")
    seed: int = argument("seed of the splits, the pairs and the wordings", default=0)
    per_kind: Positive = argument("most questions of each of the five kinds", default=1500)
    test_share: Annotated[float, Field(gt=0, lt=1), Constraint("a number between 0 and 1")] = argument(
        "share of the entities that are only in test", "SHARE", default=0.2
    )
    no_progress: bool = argument("show no progress bar", default=False)
    check_only: bool = argument(CHECK_ONLY, default=False)


@command_main(RunError, DataError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    args = read_arguments(
        PassageQuestionsArguments,
        arguments,
        prog=COMMAND,
        description=__doc__,
        epilog=EPILOG,
        check=_check_start,
    )
    passages = _check_start(args)
    if args.check_only:
        print(f"all checks passed: questions would be written into {args.out}")
        return 0
    with recorded_settings(COMMAND, args):
        summary = write_questions(args, passages)
    for split, counts in summary["splits"].items():
        listed = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
        print(f"{args.out / split}.jsonl: {sum(counts.values()):,} questions ({listed})")
    for rule, count in summary["dropped"].items():
        print(f"dropped: {count:,} ({rule})")
    return 0


def _check_start(args: PassageQuestionsArguments) -> list[Passage]:
    """Return the passages of the corpus. Raises StartError with its problems and those of --out."""
    with StartChecks() as checks:
        checks.run_on_all(lambda paths: check_first_rows(Corpus(paths)), args.corpus)
        is_readable = not checks.problems  # else one fault of a file would be reported twice
        passages = checks.run(read_passages, args.corpus, not args.no_progress) if is_readable else None
        checks.run(check_out, args.out, COMMAND)
        checks.run(refuse_replaced, args.corpus, args.out, ("train.jsonl", "test.jsonl", "summary.json"))
    return passages or []


def write_questions(args: PassageQuestionsArguments, passages: Sequence[Passage]) -> dict[str, Any]:
    """Make questions of these passages, write the files in `args.out` and return the summary.

    Raises DataError if no question can be made, and OSError if a file cannot be written.
    """
    rows, dropped = make_rows(passages, args.seed, args.per_kind, args.test_share, not args.no_progress)
    if not rows:
        raise DataError(
            f"{', '.join(map(str, args.corpus))}: no question can be made of {len(passages):,} passages: the "
            'rules need passages that begin as those of an encyclopedia do ("Title", then `Title is a 1979 '
            "film directed by ...`); give another --corpus, or let a model write them (`rag-r1 questions`)"
        )
    args.out.mkdir(parents=True, exist_ok=True)
    counts: dict[str, dict[str, int]] = {}
    # The files are replaced one right after the other when both are complete, since no entity may be in both.
    with ExitStack() as files:
        for split in ("train", "test"):
            split_rows = [row for row in rows if row["split"] == split]
            counts[split] = {kind: sum(row["kind"] == kind for row in split_rows) for kind in KINDS}
            write_json_lines(files.enter_context(atomic_file(args.out / f"{split}.jsonl")), split_rows)
    summary = {
        "passages": len(passages),
        "seed": args.seed,
        "splits": counts,
        "relations": Counter(f"{row['kind']}: {row['relation']}" for row in rows),
        "dropped": dropped,
    }
    write_json(args.out / "summary.json", summary, ensure_ascii=False)
    return summary


def read_passages(paths: Sequence[Path], progress: bool) -> list[Passage]:
    """Read the passages of a corpus.

    Raises DataError, with file and line, for a row that is not a passage.
    """
    return [passage for passage, _ in passages_of(Corpus(paths), progress=progress)]


def make_rows(
    passages: Sequence[Passage], seed: int, per_kind: int, test_share: float, progress: bool = False
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Make the questions of a corpus.

    Returns the questions as rows, at most `per_kind` of each kind, and the number of entities, facts and
    questions that each rule dropped. `test_share` is the share of the entities that are in test.
    """
    pages = [(p.id or "", clean(p.title), clean(p.contents.partition("\n")[2])) for p in passages if p.title]
    mentions = Mentions(pages)
    dropped = Counter[str]()
    entities = read_entities(tqdm(passages, "reading facts", disable=not progress), mentions, dropped)
    writer = QuestionWriter(entities, Links(entities), seed, test_share)
    rows = []
    for kind, questions in _usable_questions(writer, mentions, dropped, progress).items():
        sample = _draw(questions, per_kind, seed)
        if kind == "yes_no":  # the last drawn may be one without its counterpart
            sample = _balance_answers(sample)
        dropped[f"more than {per_kind} of {kind}"] += len(questions) - len(sample)
        rows += [_row(question, split) for question, split in sample]
    # The kinds are mixed, so that a validation on the first 120 rows covers all of them.
    rows.sort(key=lambda row: hash_words(seed, "order", row["question"]))
    return rows, {rule: count for rule, count in dropped.items() if count}


def _usable_questions(
    writer: QuestionWriter, mentions: Mentions, dropped: Counter[str], progress: bool
) -> dict[str, list[SplitQuestion]]:
    """Return the questions of a writer by kind; those that a rule drops are counted in `dropped` instead."""
    questions_by_kind: dict[str, list[SplitQuestion]] = {kind: [] for kind in KINDS}
    text_counts: Counter[str] = Counter()
    for question in tqdm(writer.questions(), "writing questions", unit=" questions", disable=not progress):
        if (split := writer.split(question)) is None:
            dropped["a question whose entities are in both splits"] += 1
        elif contains_answer(question.question, question.golds) and question.kind != "comparison":
            dropped["a question that holds its answer"] += 1
        elif question.kind == "two_facts" and names_both(question, mentions):
            dropped["two facts that another passage names, too"] += 1
        else:
            text_counts[question_key(question.question)] += 1
            questions_by_kind[question.kind].append(SplitQuestion(question, split))
    for kind, questions in questions_by_kind.items():
        unique = [pair for pair in questions if text_counts[question_key(pair.question.question)] == 1]
        dropped["a question that two entities have"] += len(questions) - len(unique)
        if kind == "yes_no":
            balanced = _balance_answers(_draw(unique, len(unique), writer.seed))
            dropped["a yes or no of which its relation has too many"] += len(unique) - len(balanced)
            unique = balanced
        questions_by_kind[kind] = unique
    return questions_by_kind


def _draw(questions: Iterable[SplitQuestion], count: int, seed: int) -> list[SplitQuestion]:
    """Draw at most `count` questions, in turn from each relation, so that no relation fills the set."""
    by_relation: dict[str, list[SplitQuestion]] = defaultdict(list)
    for pair in sorted(questions, key=lambda pair: hash_words(seed, "draw", pair.question.question)):
        by_relation[pair.question.relation].append(pair)
    ranked = [(rank, pair) for pairs in by_relation.values() for rank, pair in enumerate(pairs)]
    return [pair for _, pair in sorted(ranked, key=lambda item: item[0])[:count]]


def _balance_answers(pairs: Sequence[SplitQuestion]) -> list[SplitQuestion]:
    """Return the first questions of each answer, equally many for each in every split and relation.

    Otherwise a policy that always says yes to one form of question would be rewarded for it.
    """
    answer_counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for question, split in pairs:
        answer_counts[split, question.relation][question.golds[0]] += 1
    balanced = []
    counts = Counter[tuple[str, str, str]]()
    for pair in pairs:
        group, answer = (pair.split, pair.question.relation), pair.question.golds[0]
        if counts[*group, answer] < min(answer_counts[group][value] for value in ("yes", "no")):
            counts[*group, answer] += 1
            balanced.append(pair)
    return balanced


def _row(question: MadeQuestion, split: str) -> dict[str, Any]:
    """Return a question as a row of its split's file."""
    return {
        "id": f"{question.kind}-{hash_words(0, question.question):016x}",
        "question": question.question,
        "golden_answers": list(question.golds),
        "supporting_ids": [entity.id for entity in question.entities],
        "supporting_titles": [entity.title for entity in question.entities],
        "kind": question.kind,
        "relation": question.relation,
        "split": split,
    }


if __name__ == "__main__":
    sys.exit(main())
