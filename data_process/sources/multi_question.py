"""Makes rows that ask several questions at once, from published sets or from single questions.

MEM1's sets, `nq_hotpotqa_train_multi_N` (arXiv 2506.15841; also in Agentic RAG-R1), join N questions by `; `
in one prompt. Their gold answers are a list of aliases for each question, and an answer has the form
`a1; a2; ...`. Our own layout is `{"questions": [text, ...], "golden_answers": [[alias, ...], ...]}`.

The text of a row asks all questions and says how to answer. There is one gold answer for each combination of
aliases, so that exact match works as it does for single questions: all parts must be right, in order. The
number of combinations grows quickly. If there are more than `MAX_GOLDS`, only the first aliases of each
question are combined; in addition the k-th aliases of all questions are joined, so that each of the first 255
aliases is still in a gold answer at its place, which is all that the reward term `each_answer` needs.
`part_answers` keeps all aliases, and a row with a single question has them all as gold answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

from data_process.sources.source_kind import IDS, Row, expect
from rag_r1.data.files.questions import Question, clean_question, id_of, texts_of

#: Maximum number of joined gold answers of a row.
MAX_GOLDS = 256
_INSTRUCTION = "Answer these {n} questions in order, and separate the answers by semicolons: {questions}"
#: The words before the questions in MEM1's prompt.
_PUBLISHED_PREFIX = "Answer the following questions:"


def several_questions(row: Row) -> Question:
    """Convert a row with several questions, in MEM1's layout or with `questions` and `golden_answers`.

    A row in both layouts is read as one of the second. Raises ValueError if a column has another form, if a
    question is blank or has no answer, or if the numbers of both differ.
    """
    if "questions" in row and "golden_answers" in row:
        questions, gold_lists = texts_of(row, "questions"), row["golden_answers"]
    else:
        questions, gold_lists = _split_questions(_questions_text(row)), _published_golds(row)
    valid = isinstance(gold_lists, list) and all(isinstance(golds, list) for golds in gold_lists)
    expect(valid, "the gold answers must be a list of lists, one for each question", gold_lists)
    if len(gold_lists) != len(questions) or not questions:
        raise ValueError(f"{len(questions)} questions, but gold answers for {len(gold_lists)}")
    answers = [[gold.strip() for gold in texts_of({"golds": golds}, "golds")] for golds in gold_lists]
    for number, (text, aliases) in enumerate(zip(questions, answers, strict=True), 1):
        if not text.strip() or not any(aliases):
            problem = "has no answer" if text.strip() else "is blank"
            raise ValueError(f"question {number} {problem}")
    aliases_of_questions = [list(dict.fromkeys(filter(None, aliases))) for aliases in answers]
    return _joined_question(questions, aliases_of_questions, id_of(row, IDS), {})


def join_questions(questions: Sequence[Question], own_id: str | None = None) -> Question:
    """Join questions to one. Its titles and step answers are those of all questions, its hops their sum; the
    hops are left out if those of one question are not known."""
    metadata = [question.metadata for question in questions]
    hops = [values.get("hops") for values in metadata]
    merged: dict[str, Any] = {"hops": sum(hops) if all(hops) else None}
    for key in ("supporting_titles", "step_answers"):
        union = dict.fromkeys(text for values in metadata for text in values.get(key) or ())
        merged[key] = list(union) or None
    golds = [list(question.golds) for question in questions]
    return _joined_question([question.question for question in questions], golds, own_id, merged)


def joined_answers(answers: Sequence[Sequence[str]]) -> list[str]:
    """Return the joined gold answers, such as `a1; a2`: at least one, and of several questions at most
    `MAX_GOLDS`.

    `answers` has the aliases of the answer to each question.
    """
    if len(answers) == 1:
        return list(answers[0])
    if prod(map(len, answers)) <= MAX_GOLDS:
        return ["; ".join(parts) for parts in product(*answers)]
    n_first = max(map(len, answers))
    n_kth = min(n_first, MAX_GOLDS - 1)
    kth_aliases = [[aliases[k % len(aliases)] for aliases in answers] for k in range(n_kth)]
    while n_first > 1 and prod(min(len(aliases), n_first) for aliases in answers) > MAX_GOLDS - n_kth:
        n_first -= 1
    combined = [*product(*(aliases[:n_first] for aliases in answers)), *kth_aliases]
    return list(dict.fromkeys(map("; ".join, combined)))


def _joined_question(
    questions: list[str], answers: list[list[str]], own_id: str | None, merged: dict[str, Any]
) -> Question:
    """Join question texts with the aliases of their answers; `merged` is further metadata of the result."""
    parts = [" ".join(question.split()) for question in questions]
    sentences = [part if part.endswith("?") else f"{part}?" for part in parts]
    text = _INSTRUCTION.format(n=len(parts), questions="; ".join(sentences)) if len(parts) > 1 else parts[0]
    kind = f"{len(parts)}_questions" if len(parts) > 1 else None
    metadata = {"question_type": kind, "parts": parts, "part_answers": answers, **merged}
    return clean_question(text, joined_answers(answers), own_id, metadata)


def _questions_text(row: Row) -> str:
    """Return the questions of one of MEM1's rows, as one text."""
    if isinstance(row.get("question"), str) and row["question"].strip():
        return row["question"]
    prompt = row["prompt"]
    last = prompt[-1] if isinstance(prompt, list) and prompt else prompt
    text = last.get("content") if isinstance(last, dict) else last
    valid = isinstance(text, str) and text.strip()
    expect(valid, "`prompt` must be messages with the questions in the last", prompt)
    return text.rpartition(_PUBLISHED_PREFIX)[2]


def _split_questions(text: str) -> list[str]:
    """Split a text of questions that are joined by `; `; each question ends with a question mark."""
    parts = text.strip().split("?; ")
    return [f"{part.strip()}?" for part in parts[:-1]] + [parts[-1].strip()]


def _published_golds(row: Row) -> Any:
    """Return the gold answers from veRL's column `reward_model`."""
    model = row["reward_model"]
    truth = model.get("ground_truth") if isinstance(model, dict) else None
    target = truth.get("target") if isinstance(truth, dict) else truth
    expect(target is not None, "`reward_model` must have ground_truth.target", model)
    return target
