"""Rows of N questions: published ones, and rows joined from single questions.

MEM1's sets, `nq_hotpotqa_train_multi_N` (arXiv 2506.15841; also in Agentic RAG-R1), join N questions by `; `
in one prompt; the gold answers are a list of aliases for each, and the answer is `a1; a2; ...`. Our own
layout is `{"questions": [text, ...], "golden_answers": [[alias, ...], ...]}`.

The row asks all questions and says how to answer. Its gold answers are the joined ones, one for each
combination of aliases, so exact match works as it does elsewhere: all must be right, in order. Combinations
multiply; if there are more than `COMBINATIONS`, only the first aliases of each question are combined, and the
k-th aliases of all questions are joined, so that each alias still stands in a gold answer at its place: the
reward term `each_answer` needs no more. All aliases are kept in `part_answers`, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

from data_process.sources.source_kind import IDS, Row, expect
from rag_r1.data.files.questions import Question, clean_question, id_of, texts_of

#: Most joined gold answers of a row.
COMBINATIONS = 256
_INSTRUCTION = "Answer these {n} questions in order, and separate the answers by semicolons: {questions}"
#: In MEM1's prompt, what stands before the questions.
_PUBLISHED_PREFIX = "Answer the following questions:"


def n_questions(row: Row) -> Question:
    """The question of a row that asks several: MEM1's layout, or `questions` and `golden_answers`."""
    if "questions" in row:
        questions, golds = texts_of(row, "questions"), row["golden_answers"]
    else:
        questions, golds = _split_questions(_questions_text(row)), _target(row)
    valid = isinstance(golds, list) and all(isinstance(aliases, list) for aliases in golds)
    expect(valid, "the gold answers must be a list of lists, one for each question", golds)
    if len(golds) != len(questions) or not questions:
        raise ValueError(f"{len(questions)} questions, but gold answers for {len(golds)}")
    texts = [str(question) for question in questions]
    answers = [[str(gold).strip() for gold in texts_of({"golds": aliases}, "golds")] for aliases in golds]
    for problem, present in (("is blank", map(str.strip, texts)), ("has no answer", map(any, answers))):
        if missing := [number for number, value in enumerate(present, 1) if not value]:
            raise ValueError(f"question {missing[0]} {problem}")
    aliases_of_questions = [list(dict.fromkeys(filter(None, aliases))) for aliases in answers]
    return _join(texts, aliases_of_questions, id_of(row, IDS), {})


def join(questions: Sequence[Question], own_id: str | None = None) -> Question:
    """One question that asks all of `questions`. Its titles and steps are those of all, its hops their
    sum."""
    metadata = [question.metadata for question in questions]
    hops = [values.get("hops") for values in metadata]
    common: dict[str, Any] = {"hops": sum(hops) if all(hops) else None}
    for key in ("supporting_titles", "step_answers"):
        union = dict.fromkeys(text for values in metadata for text in values.get(key) or ())
        common[key] = list(union) or None
    golds = [list(question.golds) for question in questions]
    return _join([question.question for question in questions], golds, own_id, common)


def combinations(answers: Sequence[Sequence[str]]) -> list[str]:
    """The joined gold answers, `a1; a2`: at least one, and at most `COMBINATIONS`. `answers`: the aliases of
    each question's answer."""
    longest = max_aliases = max(map(len, answers))
    if prod(map(len, answers)) <= COMBINATIONS:
        return ["; ".join(parts) for parts in product(*answers)]
    rows = min(max_aliases, COMBINATIONS - 1)
    kth_aliases = [[aliases[k % len(aliases)] for aliases in answers] for k in range(rows)]
    remaining = COMBINATIONS - rows
    while longest > 1 and prod(min(len(aliases), longest) for aliases in answers) > remaining:
        longest -= 1
    combined = [*product(*(aliases[:longest] for aliases in answers)), *kth_aliases]
    return list(dict.fromkeys(map("; ".join, combined)))


def _join(
    questions: list[str], answers: list[list[str]], own_id: str | None, merged: dict[str, Any]
) -> Question:
    """One question of these texts and the aliases of their answers; `merged`: further metadata."""
    parts = [" ".join(question.split()) for question in questions]
    sentences = [part if part.endswith("?") else f"{part}?" for part in parts]
    text = _INSTRUCTION.format(n=len(parts), questions="; ".join(sentences)) if len(parts) > 1 else parts[0]
    kind = f"{len(parts)}_questions" if len(parts) > 1 else None
    metadata = {"question_type": kind, "parts": parts, "part_answers": answers, **merged}
    return clean_question(text, combinations(answers), own_id, metadata)


def _questions_text(row: Row) -> str:
    """The questions of one of MEM1's rows, as one text."""
    if isinstance(row.get("question"), str) and row["question"].strip():
        return row["question"]
    prompt = row["prompt"]
    last = prompt[-1] if isinstance(prompt, list) and prompt else prompt
    text = last.get("content") if isinstance(last, dict) else last
    valid = isinstance(text, str) and text.strip()
    expect(valid, "`prompt` must be messages with the questions in the last", prompt)
    return text.rpartition(_PUBLISHED_PREFIX)[2]


def _split_questions(text: str) -> list[str]:
    """The questions of a text that joins them by `; `; each ends with a question mark."""
    parts = text.strip().split("?; ")
    return [f"{part.strip()}?" for part in parts[:-1]] + [parts[-1].strip()]


def _target(row: Row) -> Any:
    """The gold answers of veRL's column."""
    model = row["reward_model"]
    truth = model.get("ground_truth") if isinstance(model, dict) else None
    target = truth.get("target") if isinstance(truth, dict) else truth
    expect(target is not None, "`reward_model` must have ground_truth.target", model)
    return target
