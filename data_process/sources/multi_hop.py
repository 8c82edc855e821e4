"""Multi-hop sources: HotpotQA, 2WikiMultihopQA and MuSiQue.

In addition to the answers, the rows name the passages that support them, the type of the question, and the
number of hops it needs; MuSiQue also has the answer of each hop. The paragraphs themselves are not kept,
since the policy has to find them. Each converter raises ValueError, saying what is wrong with the row.
"""

from __future__ import annotations

import re
from typing import Any

from data_process.sources.open_domain import supporting_paragraphs
from data_process.sources.source_kind import (
    IDS,
    Row,
    expect,
    optional_text,
    optional_texts,
    row_golds,
    row_question,
)
from rag_r1.data.files.questions import Question, id_of, texts_of

#: 2WikiMultihopQA's types of questions (Ho et al., 2020) -> number of hops; only the last needs four
#: passages.
_HOPS = {"compositional": 2, "inference": 2, "comparison": 2, "bridge_comparison": 4}


def hotpotqa(row: Row) -> Question:
    """Convert a row of HotpotQA (Yang et al., 2018); every question has two hops.

    The level is `easy`, `medium` or `hard`.
    """
    metadata = {
        "question_type": optional_text(row, "type"),
        "level": optional_text(row, "level"),
        "hops": 2,
        "supporting_titles": supporting_titles(row),
    }
    return row_question(row, metadata=metadata)


def two_wiki(row: Row) -> Question:
    """Convert a row of 2WikiMultihopQA.

    The aliases of its answers are in a separate file (`id_aliases.json`), which is not read. The test set has
    no answers.
    """
    kind = optional_text(row, "type")
    titles = supporting_titles(row)
    metadata = {"question_type": kind, "hops": _HOPS.get(kind), "supporting_titles": titles}
    return row_question(row, metadata=metadata)


def musique(row: Row) -> Question:
    """Convert a row of MuSiQue (Trivedi et al., 2022).

    An id begins with the shape of the question, such as `3hop1__`, which gives the type and the number of
    hops. Raises ValueError for rows of MuSiQue-Full that cannot be answered.
    """
    if row.get("answerable") is False:
        raise ValueError("cannot be answered (`answerable` is false): use MuSiQue-Ans, or leave them out")
    shape = re.match(r"((\d)hop\d?)_", id_of(row, IDS) or "")
    metadata = {
        "question_type": shape[1] if shape else None,
        "hops": int(shape[2]) if shape else None,
        "supporting_titles": supporting_paragraphs(row),
        "step_answers": _step_answers(row),
    }
    return row_question(row, row_golds(row) + optional_texts(row, "answer_aliases"), metadata)


def supporting_titles(row: Row) -> list[str] | None:
    """Return the titles of the supporting facts, each once, or None if the row has none.

    The facts are pairs of title and sentence (the raw files), `{"title": [...], "sent_id": [...]}` (the Hub),
    or a list of objects with a title. Raises ValueError if they have another form.
    """
    if "supporting_facts" not in row:
        return None
    facts = row["supporting_facts"]
    titles = facts.get("title") if isinstance(facts, dict) else facts
    if isinstance(facts, list):
        titles = [_fact_title(fact) for fact in facts]
    valid = isinstance(titles, list) and all(isinstance(title, str) for title in titles)
    expect(valid, "`supporting_facts` must be pairs of title and sentence", facts)
    return list(dict.fromkeys(titles))


def _step_answers(row: Row) -> list[str] | None:
    """Return the answers of MuSiQue's single-hop questions, each once, or None if the row has none."""
    steps = row.get("question_decomposition")
    if steps is None:
        return None
    valid = isinstance(steps, list) and all(isinstance(step, dict) and "answer" in step for step in steps)
    expect(valid, "`question_decomposition` must be a list of objects with an answer", steps)
    with_answer = (step for step in steps if step["answer"] is not None)
    texts = (text.strip() for step in with_answer for text in texts_of(step, "answer"))
    return list(dict.fromkeys(filter(None, texts)))


def _fact_title(fact: Any) -> Any:
    """Return the title of a supporting fact, or None if the fact has neither of the two forms."""
    if isinstance(fact, dict):
        return fact.get("title")
    return fact[0] if isinstance(fact, list) and len(fact) == 2 else None
