"""Where this project deliberately differs from the published code: all of it, in one place.

Each difference is a predicate on the content of a case, with the reason in one line and the columns in which
it may show. A predicate is true only where the two really come apart: a case that it covers and that agrees
in every column is an error of the predicate, a case that disagrees and that none covers is one of the code.

An example of each stands in `difference_examples.py`, what the published code reads where ours reads
something else in `published_readings.py`; docs/published_formats.md tells users the same, by the same names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from rag_r1.protocols import Action, Invalid
from rag_r1.rewards import normalise
from rag_r1.rewards.normalise import normalise_r1_searcher
from rag_r1.rewards.terms.r1_searcher import r1_searcher_blocks
from tests.golden.golden_tables import TABLES, Case, documents_of, played, protocol, rag_r1_action
from tests.golden.published_readings import (
    answer_in_the_text,
    block,
    figures,
    finds_gold_elsewhere,
    first_closing,
    last_answer,
    plain_figures,
    reads_a_later_answer,
    reads_another_answer,
)

SCORES = ("em", "score", "score_retrieval", "stage1_llama", "stage2_llama", "qwen_zero", "cover_em", "f1")
SEARCH_R1 = ("search_r1_em", "search_r1_format")


@dataclass(frozen=True)
class Difference:
    """`columns`: where it may show. `applies(table, case)`: does the case come out differently for this
    reason?"""

    name: str
    reason: str
    columns: tuple[str, ...]
    applies: Callable[[str, Case], bool]


def explaining(table: str, case: Case) -> list[Difference]:
    """The differences that apply to a case."""
    return [difference for difference in DIFFERENCES if difference.applies(table, case)]


def dialect(table: str) -> str:
    """The protocol in which a table with turns is read."""
    return "search_r1" if table in SEARCH_R1 else "r1_searcher"


def _actions(table: str, case: Case) -> list[Action]:
    return [protocol(dialect(table)).parse(turn["text"]) for turn in case["turns"]]


# The predicates.


def _hint_read_as_answer(table: str, case: Case) -> bool:
    hint = protocol("search_r1").invalid_hint
    return (
        table == "search_r1_format"
        and played("search_r1", case).answer is None
        and any(turn["observation"] == hint for turn in case["turns"])
    )


def _empty_query(table: str, case: Case) -> bool:
    empty = Invalid("empty query")
    if table == "rag_r1_queries":
        return rag_r1_action(case) == empty
    return table in SEARCH_R1 and empty in _actions(table, case)[:-1]


def _tags_in_documents(table: str, case: Case) -> bool:
    if "observations" not in TABLES[table]:
        return False
    neutralise = protocol(dialect(table)).neutralise
    contents = [document.contents for turn in case["turns"] for document in documents_of(turn["documents"])]
    return any(neutralise(text) != text for text in contents)


def _nothing_left(table: str, case: Case) -> bool:
    golds = case.get("golds", [])
    if table == "r1_searcher_cover_em":
        read = (case["prediction"], golds, "r1_searcher")
        return figures(*read) != plain_figures(*read)
    if "observations" not in TABLES[table]:
        return False
    r1_searcher = table == "r1_searcher_rewards"
    answer = played(dialect(table), case).answer or ""
    published = last_answer(case) if r1_searcher else answer_in_the_text(case)
    shorten, normaliser = (normalise_r1_searcher, "r1_searcher") if r1_searcher else (normalise, "squad")
    if published is not None and not all(map(shorten, golds)):
        compared = slice(1, 3) if r1_searcher else slice(0, 1)  # cover-EM and F1, or EM
        values = figures(answer, golds, normaliser)[compared]
        if values != plain_figures(published, golds, normaliser)[compared]:
            return True
    return table == "search_r1_format" and not all(map(normalise, golds)) and finds_gold_elsewhere(case)


def _gold_within_a_word(table: str, case: Case) -> bool:
    return table == "search_r1_format" and all(map(normalise, case["golds"])) and finds_gold_elsewhere(case)


def _answer_left_open(table: str, case: Case) -> bool:
    if table not in SEARCH_R1:
        return False
    record = played("search_r1", case)
    *earlier, _ = record.turns
    left_open = any(turn.text.rfind("<answer>") > turn.text.rfind("</answer>") for turn in earlier)
    return left_open and not _hint_read_as_answer(table, case) and reads_another_answer(table, case)


def _past_the_stop(table: str, case: Case) -> bool:
    if table == "rag_r1_queries":
        action, end = block(case["response"])
        return action is not None and first_closing(case["response"]) < end
    if table not in SEARCH_R1:
        return False
    last = case["turns"][-1]
    for turn, action in zip(case["turns"], _actions(table, case), strict=True):
        text = turn["text"].rstrip()
        if first_closing(text) < len(text):
            published = block(text)[0] or "invalid"
            kind = "search" if action == Invalid("empty query") else action.kind
            if (published != kind and turn is not last) or reads_another_answer(table, case):
                return True
        if action.kind == "answer":
            return False
    return False


def _behind_the_answer(table: str, case: Case) -> bool:
    if table != "r1_searcher_rewards":
        return False
    written = "".join(turn["text"] for turn in case["turns"])
    behind = written.partition("</answer>")[2]
    return bool(behind.strip()) and reads_a_later_answer(case)


def _nothing_found(table: str, case: Case) -> bool:
    if table != "r1_searcher_rewards" or case["stage1_llama"] is None:
        return False
    record = played("r1_searcher", case)
    return [] in [documents for turn in record.turns for documents in turn.documents] and bool(
        r1_searcher_blocks(record, [])
    )


def _search_body(case: Case) -> str | None:
    """The body of the search that the released code carried out and ours as well."""
    searched = case["action"] == "search" and rag_r1_action(case).kind == "search"
    return case["content"] if searched else None


def _opened_again(table: str, case: Case) -> bool:
    return table == "rag_r1_queries" and "<search>" in (_search_body(case) or "")


def _listed(case: Case) -> str:
    """The body of a list of queries as our parser sees it, empty if the case has none."""
    body = _search_body(case) if case.get("mode") == "mq" else None
    return (body or "").rpartition("<search>")[2].strip()


def _number_comma(table: str, case: Case) -> bool:
    return table == "rag_r1_queries" and re.search(r"\d,\d{3}(?!\d)", _listed(case)) is not None


def _quoted(table: str, case: Case) -> bool:
    if table != "rag_r1_queries":
        return False
    body = _listed(case)
    try:
        json_list = body.startswith("[") and isinstance(json.loads(body), list)
    except ValueError:
        json_list = False
    return json_list or re.search(r'(?:^|,)\s*"[^"]*"\s*(?:,|$)', body) is not None


def _plain_items(case: Case) -> list[str]:
    return [folded for item in _listed(case).split(",") if (folded := " ".join(item.split()).casefold())]


def _repeated(table: str, case: Case) -> bool:
    items = _plain_items(case) if table == "rag_r1_queries" else []
    return len(set(items)) < len(items)


def _too_many(table: str, case: Case) -> bool:
    return table == "rag_r1_queries" and len(set(_plain_items(case))) > 3


DIFFERENCES = (
    Difference(
        "hint read as an answer",
        "What the environment writes is no answer of the policy's: without one the reward is 0, not 0.1.",
        ("score", "score_retrieval"),
        _hint_read_as_answer,
    ),
    Difference(
        "empty query",
        "Nothing can be searched for, so the policy is told how to search, in place of an empty result.",
        ("action", "queries", "observations", "score", "score_retrieval"),
        _empty_query,
    ),
    Difference(
        "tags inside documents",
        "Tags in documents are neutralised, so no document closes its block, answers or breaks the format.",
        ("observations", *SCORES),
        _tags_in_documents,
    ),
    Difference(
        "gold that normalises to nothing",
        'A gold such as "The The" or "?" is right when it is given as it stands, and by nothing else.',
        SCORES,
        _nothing_left,
    ),
    Difference(
        "gold within a word",
        "A retrieved document holds a gold as whole words only.",
        ("score_retrieval",),
        _gold_within_a_word,
    ),
    Difference(
        "answer left open in an earlier turn",
        "A turn is read by itself: an opening tag left over from an earlier one does not swallow the answer.",
        ("em", "score", "score_retrieval"),
        _answer_left_open,
    ),
    Difference(
        "text behind the first closing tag",
        "Generation stops at the first closing tag; if an engine runs past it, the rest is ignored.",
        ("action", "answer", "queries", "observations", "em", "score", "score_retrieval"),
        _past_the_stop,
    ),
    Difference(
        "text behind the first answer",
        "The first answer ends the episode; R1-Searcher's policy writes on, and its servers read its last.",
        ("stage1_llama", "stage2_llama", "qwen_zero"),
        _behind_the_answer,
    ),
    Difference(
        "search that finds nothing",
        "It is not the policy's fault, so the format stays right.",
        ("stage1_llama", "stage2_llama", "qwen_zero"),
        _nothing_found,
    ),
    Difference(
        "search opened again",
        "The query begins at the last opening tag: what stands before it was given up.",
        ("queries",),
        _opened_again,
    ),
    Difference(
        "comma in a number",
        'A comma before three digits belongs to the number: "1,000" is one query.',
        ("queries",),
        _number_comma,
    ),
    Difference(
        "quoted queries and JSON lists",
        "A query in double quotes may hold a comma, and the quotes are not part of it.",
        ("queries",),
        _quoted,
    ),
    Difference(
        "repeated query",
        "A query is asked once a turn, whatever its letter case and white space.",
        ("queries",),
        _repeated,
    ),
    Difference(
        "more than three queries",
        "Three queries a turn, as the prompt says, are carried out.",
        ("queries",),
        _too_many,
    ),
)
