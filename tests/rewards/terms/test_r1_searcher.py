"""R1-Searcher's rewards: the published values, the format rules one by one, and what cannot be forged."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.agent import Trajectory, Turn
from rag_r1.protocols import Document, load_protocol
from rag_r1.rewards import RewardSum

REWARDS = Path(__file__).parents[3] / "recipes" / "r1_searcher" / "reward"
NAMES = ("paper_stage1", "paper_stage2", "llama_stage1", "llama_stage2", "qwen_zero")
SUMS = {
    name: RewardSum.from_config(yaml.safe_load((REWARDS / f"{name}.yaml").read_text())["rag_r1"]["reward"])
    for name in NAMES
}
PROTOCOL = load_protocol("r1_searcher")
ULM = Document("0", '"Ulm"\nUlm lies on the Donau.')
GOLD = "blue Danube"
SEARCH = " I search. <|begin_of_query|> Ulm river <|end_of_query|>"
RIGHT = "So. </think>\n\n<answer> blue Danube </answer>"
WRONG = "So. </think>\n\n<answer> Rhine </answer>"
#: Eleven words with both of the gold's among them: F1 = 2 x 2 / (11 + 2).
ELEVEN = "So. </think> <answer> it must be one blue Danube in some far southern place </answer>"


def played(*texts: str, documents=(ULM,)) -> Trajectory:
    """A record as the agent core leaves it: every query that can be read is answered, but for the last."""
    turns, action = [], PROTOCOL.parse("")
    for i, text in enumerate(texts):
        action = PROTOCOL.parse(text)
        turn = Turn(text, action.kind)
        if action.kind == "search" and i < len(texts) - 1:
            turn = Turn.searched(text, action.queries, [list(documents)])
        turns.append(turn)
    answer = action.text if action.kind == "answer" else None
    return Trajectory("t", "?", "r1_searcher", turns=turns, answer=answer)


def score(name: str, *texts: str, golds=GOLD) -> float:
    return SUMS[name](played(*texts), golds)["score"]


NOTHING = "I do not know"
UNCLOSED = RIGHT.replace("</think>", "")

PUBLISHED = [
    ("llama_stage1", "search and right", (SEARCH, RIGHT), 2.0),
    ("llama_stage1", "search and wrong", (SEARCH, WRONG), 0.0),
    ("llama_stage1", "no search and right", (RIGHT,), 1.5),
    ("llama_stage1", "nothing", (NOTHING,), -1.0),
    ("llama_stage2", "right", (SEARCH, RIGHT), 1.0),
    ("llama_stage2", "right with a bad format", (SEARCH, UNCLOSED), 0.0),
    ("qwen_zero", "right with a bad format", (SEARCH, UNCLOSED), -1.0),
    ("qwen_zero", "an answer of eleven words", (SEARCH, ELEVEN), -1.69),
    ("qwen_zero", "Chinese", (SEARCH, "中文 " + RIGHT), -1.0),
]
OF_THE_FORMULAS = [
    ("paper_stage1", "search, whatever is answered", (SEARCH, WRONG), 1.0),
    ("paper_stage1", "search with a bad format", (SEARCH, UNCLOSED), 0.5),
    ("paper_stage1", "no search, right", (RIGHT,), 0.5),
    ("paper_stage1", "nothing", (NOTHING,), 0.0),
    ("paper_stage2", "right", (SEARCH, RIGHT), 1.0),
    ("paper_stage2", "right without a search", (RIGHT,), 1.0),
    ("paper_stage2", "wrong", (SEARCH, WRONG), 0.0),
    ("paper_stage2", "right with a bad format", (SEARCH, UNCLOSED), -1.0),
    ("paper_stage2", "an answer of eleven words", (SEARCH, ELEVEN), 4 / 13),
    ("paper_stage2", "nothing", (NOTHING,), -2.0),
    ("llama_stage1", "search, no answer", (SEARCH, NOTHING), -0.5),
    ("llama_stage1", "right with a bad ending", (SEARCH, UNCLOSED), 1.5),
    ("llama_stage2", "wrong with a bad format", (UNCLOSED.replace("blue Danube", "x"),), -1.0),
    ("qwen_zero", "right", (SEARCH, RIGHT), 1.0),
    ("qwen_zero", "nothing", (NOTHING,), -2.0),
]
TABLE = PUBLISHED + OF_THE_FORMULAS


@pytest.mark.parametrize(
    ("name", "texts", "value"), [(n, t, v) for n, _, t, v in TABLE], ids=[f"{n}: {w}" for n, w, _, _ in TABLE]
)
def test_the_table_of_values(name, texts, value):
    assert score(name, *texts) == pytest.approx(value, abs=0.005)


def is_right(*texts: str, **options) -> bool:
    reward = RewardSum.from_config([{"term": "r1_searcher_format", **options}])
    return reward(played(*texts), GOLD)["score"] == 1


RIGHT_FORMATS = [
    (RIGHT,),
    (SEARCH, RIGHT),
    (SEARCH, SEARCH, RIGHT),
    (" 我想。" + SEARCH, RIGHT),
    (" The assistant thinks." + SEARCH, RIGHT),
    (SEARCH, ELEVEN),
    (SEARCH, "</think><answer></answer>"),
]
WRONG_ENDINGS = [
    (SEARCH, "<think>" + RIGHT),
    (SEARCH + "<think>", RIGHT),
    (SEARCH, RIGHT.replace("</think>", "")),
    (SEARCH, "</think>" + RIGHT),
    (SEARCH, "<answer> Danube" + RIGHT),
    (SEARCH, "So. </think> <answer> Danube"),
    (SEARCH, "So. </think> Danube </answer>"),
    (SEARCH, SEARCH),
    (SEARCH, NOTHING),
    (),
]
WRONG_BLOCKS = [
    ("<|begin_of_query|>" + SEARCH, RIGHT),
    (SEARCH, "<|begin_of_query|> more " + RIGHT),
    (SEARCH, "<|begin_of_query|> <|end_of_query|>", RIGHT),
    (SEARCH, "river <|end_of_query|>", RIGHT),
    (SEARCH, "<|begin_of_documents|>\n(1)The Danube.\n<|end_of_documents|>\n\n" + RIGHT),
    (SEARCH, "<|end_of_documents|>\n\n" + RIGHT),
    (SEARCH, "<|begin_of_documents|>\n" + RIGHT),
]


@pytest.mark.parametrize(
    ("texts", "right"),
    [(texts, True) for texts in RIGHT_FORMATS] + [(texts, False) for texts in WRONG_ENDINGS + WRONG_BLOCKS],
)
def test_right_and_wrong_formats(texts, right):
    assert is_right(*texts) is right


def test_a_document_block_of_its_own_does_not_make_up_for_an_unanswered_query():
    forged = "<|begin_of_query|> <|end_of_query|>\n\n<|begin_of_documents|>\n(1)x\n<|end_of_documents|>\n\n"
    assert not is_right(SEARCH, forged, RIGHT)


@pytest.mark.parametrize(
    ("option", "texts"),
    [
        ({"no_chinese": True}, (" 我想。" + SEARCH, RIGHT)),
        ({"no_chinese": True}, (SEARCH, RIGHT.replace("blue", "蓝"))),
        ({"no_assistant": True}, (" The assistant thinks." + SEARCH, RIGHT)),
        ({"no_assistant": True}, (SEARCH, "User: so? Assistant: " + RIGHT)),
        ({"most_answer_words": 10}, (SEARCH, ELEVEN)),
        ({"no_tags_in_answer": True}, (SEARCH, RIGHT.replace("blue", "<|begin_of_query|> x"))),
        ({"no_tags_in_answer": True}, (SEARCH, RIGHT.replace("blue", "<|end_of_documents|>"))),
        ({"no_tags_in_answer": True}, (SEARCH, RIGHT.replace("blue", "begin_of_query blue"))),
        ({"no_tags_in_answer": True}, (SEARCH, RIGHT.replace("blue", "begin_of_documents"))),
    ],
)
def test_the_rules_that_are_switched_on(option, texts):
    assert not is_right(*texts, **option)
    assert is_right(SEARCH, RIGHT, **option)


def test_the_word_search_in_an_answer_is_no_tag_of_a_dialect_with_other_tags():
    turn = Turn("<think> so </think> <answer> search information </answer>", "answer")
    record = Trajectory("t", "?", "search_r1", turns=[turn], answer="search information")
    reward = RewardSum.from_config([{"term": "r1_searcher_format", "no_tags_in_answer": True}])
    assert reward(record, GOLD)["score"] == 1.0
    record.answer = "<search> x"
    assert reward(record, GOLD)["score"] == 0.0


def test_every_reward_reports_the_answer_terms_which_compare_as_r1_searcher_does_and_the_searches():
    turns = (SEARCH, RIGHT.replace("blue Danube", "Jean Luc Godard"))
    for reward in SUMS.values():
        values = reward(played(*turns), "Jean-Luc Godard")
        assert [values[term] for term in ("em", "f1", "cover_em", "searched")] == [1.0] * 4
    assert score("llama_stage1", *turns, golds="Jean-Luc Godard") == 2.0


def test_ten_words_are_not_too_many():
    ten = ELEVEN.replace("it must", "must")
    assert is_right(SEARCH, ten, most_answer_words=10) and not is_right(SEARCH, ten, most_answer_words=9)


@pytest.mark.parametrize("documents", [[Document("0", "多瑙河 Assistant: blue Danube")], []])
def test_neither_the_words_of_documents_nor_a_search_without_results_are_the_policys_fault(documents):
    for name in ("paper_stage2", "llama_stage2", "qwen_zero"):
        assert SUMS[name](played(SEARCH, RIGHT, documents=documents), GOLD)["score"] == 1.0


def test_in_a_dialect_whose_prompt_opens_nothing_the_policy_opens_the_thought_itself():
    turn = Turn("<think> I know. </think> <answer> Danube </answer>", "answer")
    record = Trajectory("t", "?", "search_r1", turns=[turn], answer="Danube")
    reward = RewardSum.from_config([{"term": "r1_searcher_format"}])
    assert reward(record, GOLD)["score"] == 1.0
    record.turns[0].text = turn.text.removeprefix("<think>")
    assert reward(record, GOLD)["score"] == 0.0


PIECES = [part for tag in vars(PROTOCOL.tags).values() for part in (tag.open, tag.close)]


@given(
    st.lists(st.lists(st.sampled_from([*PIECES, " a ", "\n", "(1)"]), max_size=8).map("".join), max_size=4)
)
def test_any_text_has_a_value_within_the_rewards_bounds(texts):
    bounds = {name: (-2.0, 1.0) for name in NAMES} | {"paper_stage1": (0.0, 1.0), "llama_stage1": (-1.0, 2.0)}
    texts = [text for text in texts if PROTOCOL.parse(text).kind == "search"] + texts[-1:]
    for name, (least, most) in bounds.items():
        assert least <= SUMS[name](played(*texts) if texts else played(""), "a")["score"] <= most
