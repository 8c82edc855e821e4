"""Open-domain sources: NQ, TriviaQA, PopQA, Bamboogle and ASearcher.

FlashRAG publishes most of them as `{"id", "question", "golden_answers"}`; the other layouts are those of the
original files. Each converter gets a row with the columns of one of the source's layouts, which `__init__.py`
lists, and raises ValueError, saying what is wrong with it.
"""

from __future__ import annotations

import json
from contextlib import suppress

from data_process.sources.source_kind import (
    Row,
    expect,
    optional_text,
    optional_texts,
    row_golds,
    row_question,
)
from rag_r1.data.files.questions import Question, texts_of


def nq(row: Row) -> Question:
    """Convert a row of Natural Questions; NQ-open (Lee et al., 2019) has a list in `answer`."""
    key = "golden_answers" if "golden_answers" in row else "answer"
    expect(isinstance(row[key], list), f"`{key}` must be a list of texts", row[key])
    return row_question(row)


def triviaqa(row: Row) -> Question:
    """Convert a row of TriviaQA (Joshi et al., 2017); its golds are the answer and its aliases.

    `NormalizedAliases` are left out: they lack only case and punctuation, which scoring ignores anyway.
    """
    if "golden_answers" in row:
        return row_question(row)
    is_original = "Answer" in row  # TriviaQA's own files have capitals, the Hub's data set has none
    answer = row["Answer" if is_original else "answer"]
    value, aliases = ("Value", "Aliases") if is_original else ("value", "aliases")
    valid = isinstance(answer, dict) and isinstance(answer.get(value), str)
    expect(valid, f"the answer must have `{value}` and `{aliases}`", answer)
    golds = [answer[value], *optional_texts(answer, aliases)]
    return row_question(row, golds, key="Question" if is_original else "question")


def popqa(row: Row) -> Question:
    """Convert a row of PopQA (Mallen et al., 2023); every question has one hop.

    The type is the relation that the question asks for. The supporting titles are those of the supporting
    `paragraphs` if the row has any, and otherwise the page of the question's subject.
    """
    golds = row_golds(row) if "golden_answers" in row else _json_texts(row, "possible_answers")
    titles = supporting_paragraphs(row) or ([row["s_wiki_title"]] if row.get("s_wiki_title") else None)
    valid = not titles or all(isinstance(title, str) for title in titles)
    expect(valid, "`s_wiki_title` must be a text", row.get("s_wiki_title"))
    metadata = {"question_type": optional_text(row, "prop"), "supporting_titles": titles, "hops": 1}
    return row_question(row, golds, metadata)


def bamboogle(row: Row) -> Question:
    """Convert a row of Bamboogle (Press et al., 2022); every question has two hops."""
    answer_key = next(key for key in ("golden_answers", "answer", "Answer") if key in row)
    key = "question" if "question" in row else "Question"
    return row_question(row, texts_of(row, answer_key), {"hops": 2}, key=key)


def asearcher(row: Row) -> Question:
    """Convert a row of ASearcher.

    Its training sets have lists in `answer` and `aug_answer`, and the type in `source`; its test sets have a
    text in `answer`.
    """
    golds = texts_of(row, "answer") + optional_texts(row, "aug_answer")
    if any("####" in gold for gold in golds):
        raise ValueError("not of asearcher: it looks like gsm8k, whose answers end in ####")
    return row_question(row, golds, {"question_type": optional_text(row, "source")})


def supporting_paragraphs(row: Row) -> list[str] | None:
    """Return the titles of the supporting paragraphs, each once, or None if the row has no paragraphs.

    Raises ValueError if these are not objects with a title.
    """
    if "paragraphs" not in row:
        return None
    items = row["paragraphs"]
    dicts = isinstance(items, list) and all(isinstance(item, dict) for item in items)
    valid = dicts and all(isinstance(item.get("title"), str) for item in items)
    expect(valid, "`paragraphs` must be a list of objects with a title", items)
    return list(dict.fromkeys(item["title"] for item in items if item.get("is_supporting")))


def _json_texts(row: Row, key: str) -> list[str]:
    """Return the texts under a key that holds a list or a JSON list. Raises ValueError for anything else."""
    value = row[key]
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):  # a text that is not JSON is refused below
            value = json.loads(value)
    expect(isinstance(value, list), f"`{key}` must be a JSON list of texts", value)
    return texts_of({key: value}, key)
