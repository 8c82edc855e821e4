"""Open-domain sources: NQ, TriviaQA, PopQA, Bamboogle and ASearcher.

FlashRAG publishes most of them as `{"id", "question", "golden_answers"}`; the other layouts are those of the
sets' own files. Each function reads a row that has the columns of one of its source's layouts, which
`__init__.py` lists.
"""

from __future__ import annotations

import json
from typing import Any

from data_process.sources.source_kind import IDS
from rag_r1.data.files.questions import Question, clean_question, id_of, text_of, texts_of
from rag_r1.data.files.row_files import short_text

Row = dict[str, Any]


def nq(row: Row) -> Question:
    """Natural Questions. NQ-open has `answer`, a list (Lee et al., 2019)."""
    key = "golden_answers" if "golden_answers" in row else "answer"
    if not isinstance(row[key], list):
        raise ValueError(f"`{key}` must be a list of texts, not {short_text(row[key])}")
    return clean_question(text_of(row, "question"), texts_of(row, key), id_of(row, IDS))


def triviaqa(row: Row) -> Question:
    """TriviaQA (Joshi et al., 2017): the answer and its aliases. `NormalizedAliases` are left out: they are
    the aliases without case and punctuation, which scoring removes anyway."""
    if "golden_answers" in row:
        return clean_question(text_of(row, "question"), texts_of(row, "golden_answers"), id_of(row, IDS))
    upper = "Answer" in row
    answer = row["Answer" if upper else "answer"]
    value, aliases = ("Value", "Aliases") if upper else ("value", "aliases")
    if not isinstance(answer, dict) or not isinstance(answer.get(value), str):
        raise ValueError(f"the answer must have `{value}` and `{aliases}`, not {short_text(answer)}")
    golds = [answer[value], *(texts_of(answer, aliases) if answer.get(aliases) else [])]
    return clean_question(text_of(row, "Question" if upper else "question"), golds, id_of(row, IDS))


def popqa(row: Row) -> Question:
    """PopQA (Mallen et al., 2023). Its type is the relation asked for. Supporting titles: those of the
    supporting `paragraphs` if it has any, else the page of the question's subject."""
    if "golden_answers" in row:
        golds = texts_of(row, "golden_answers")
    else:
        golds = _json_texts(row, "possible_answers")
    titles = supporting_paragraphs(row) or ([row["s_wiki_title"]] if row.get("s_wiki_title") else None)
    if titles and not all(isinstance(title, str) for title in titles):
        raise ValueError(f"`s_wiki_title` must be a text, not {short_text(row['s_wiki_title'])}")
    metadata = {
        "question_type": text_of(row, "prop") if "prop" in row else None,
        "supporting_titles": titles,
        "hops": 1,
    }
    return clean_question(text_of(row, "question"), golds, id_of(row, IDS), metadata)


def bamboogle(row: Row) -> Question:
    """Bamboogle (Press et al., 2022): two hops each."""
    question = "question" if "question" in row else "Question"
    answer = next(key for key in ("golden_answers", "answer", "Answer") if key in row)
    return clean_question(text_of(row, question), texts_of(row, answer), id_of(row, IDS), {"hops": 2})


def asearcher(row: Row) -> Question:
    """ASearcher's training sets (`answer` and `aug_answer` are lists; the type is the `source` of the row)
    and its test sets (`answer` is a text)."""
    golds = texts_of(row, "answer") + (texts_of(row, "aug_answer") if row.get("aug_answer") else [])
    if any(isinstance(gold, str) and "####" in gold for gold in golds):
        raise ValueError("not of asearcher: it looks like gsm8k, whose answers end in ####")
    kind = text_of(row, "source") if "source" in row else None
    return clean_question(text_of(row, "question"), golds, id_of(row, IDS), {"question_type": kind})


def supporting_paragraphs(row: Row) -> list[str] | None:
    """Titles of the paragraphs that are marked as supporting, each once; None if there are no paragraphs."""
    if "paragraphs" not in row:
        return None
    paragraphs = row["paragraphs"]
    if not isinstance(paragraphs, list) or not all(
        isinstance(paragraph, dict) and isinstance(paragraph.get("title"), str) for paragraph in paragraphs
    ):
        raise ValueError(f"`paragraphs` must be a list of objects with a title, not {short_text(paragraphs)}")
    return list(
        dict.fromkeys(paragraph["title"] for paragraph in paragraphs if paragraph.get("is_supporting"))
    )


def _json_texts(row: Row, key: str) -> list[Any]:
    """Texts in a list, or in a text that is a JSON list."""
    value = row[key]
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError(f"`{key}` must be a JSON list of texts, not {short_text(value)}") from None
    if not isinstance(value, list):
        raise ValueError(f"`{key}` must be a list of texts, not {short_text(value)}")
    return texts_of({key: value}, key)
