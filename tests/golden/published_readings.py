"""What the published scorers read out of a case, as far as the differences need it, and no more.

Search-R1 takes an answer out of the whole text (prompt, hint and documents included) and a retrieved gold as
any piece of text; R1-Searcher takes the last answer; neither has a rule for an answer that normalises to
nothing. The functions say where that leads to another reward than reading the policy's turns one by one.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from rag_r1.rewards import cover_exact_match, exact_match, normalise, token_f1
from rag_r1.rewards.normalise import normalise_r1_searcher
from rag_r1.rewards.terms.search_r1 import found_gold, is_valid
from tests.golden.golden_tables import Case, played, protocol, recipe_reward


def block(text: str) -> tuple[str | None, int]:
    """The action that Search-R1 and RAG-R1 find in a turn, and where its block ends.

    They cut the text behind the first closing tag of a search, or else of an answer, and take the first block
    that its own tag closes."""
    for close in ("</search>", "</answer>"):
        if close in text:
            text = text[: text.index(close) + len(close)]
            break
    match = re.search(r"<(search|answer)>(.*?)</\1>", text, re.DOTALL)
    return (match[1], match.end()) if match else (None, 0)


def first_closing(text: str) -> int:
    """Where the first closing tag of a search or an answer ends; the text's length if there is none."""
    closing = re.search("</(?:search|answer)>", text)
    return closing.end() if closing else len(text)


def answer_in_the_text(case: Case) -> str | None:
    """Search-R1 takes the last answer block of the whole text, of which the first is the prompt's example."""
    blocks = re.findall(r"<answer>(.*?)</answer>", case["solution_str"], re.DOTALL)
    return blocks[-1].strip() if len(blocks) > 1 else None


def reads_another_answer(table: str, case: Case) -> bool:
    """Is the answer in Search-R1's whole text worth something else than that of the policy's last turn?"""

    def grade(answer: str | None) -> Any:
        right = exact_match(answer, case["golds"])
        return right if table == "search_r1_em" else (answer is None, right)

    return grade(answer_in_the_text(case)) != grade(played("search_r1", case).answer)


def last_answer(case: Case) -> str | None:
    """R1-Searcher takes what stands behind the last opening tag, if both tags occur at all."""
    response = case["response"]
    if "<answer>" not in response or "</answer>" not in response:
        return None
    return response.split("<answer>")[-1].split("</answer>")[0].strip()


def reads_a_later_answer(case: Case) -> bool:
    """Is the last answer of an R1-Searcher case worth something else than the first?"""
    record = played("r1_searcher", case)
    other = replace(record, answer=last_answer(case))
    rewards = [recipe_reward(name) for name in ("llama_stage1", "llama_stage2", "qwen_zero")]
    golds = case["golds"]
    return any(reward(record, golds) != reward(other, golds) for reward in rewards)


def figures(prediction: str, golds: list[str], normaliser: Any) -> tuple[float, float, float]:
    """Our EM, cover-EM and F1."""
    em, cover, f1 = (
        metric(prediction, golds, normaliser=normaliser)
        for metric in (exact_match, cover_exact_match, token_f1)
    )
    return em, cover, f1


def plain_figures(prediction: str, golds: list[str], normaliser: Any) -> tuple[float, float, float]:
    """The same without a rule for what normalises to nothing: it equals and covers its like, and has no
    tokens in common with anything."""
    shorten = {"squad": normalise, "r1_searcher": normalise_r1_searcher}[normaliser]
    something = [gold for gold in golds if shorten(gold)]
    alike = float(not shorten(prediction) and len(something) < len(golds))
    em, cover, f1 = figures(prediction, something, normaliser)
    return max(alike, em), max(alike, cover), f1


def finds_gold_elsewhere(case: Case) -> bool:
    """Does Search-R1's reward for a retrieved gold come out differently?

    There any piece of what stands between information tags counts, and the prompt has such tags too."""
    record, golds = played("search_r1", case), case["golds"]
    if not is_valid(record, protocol("search_r1").tags) or exact_match(record.answer, golds):
        return False
    blocks = re.findall("<information>(.*?)</information>", case["solution_str"], re.DOTALL)
    piece = any(normalise(gold) in normalise(text) for gold in golds for text in blocks)
    return piece != found_gold(record, golds)
