"""A small case of our own for each deliberate difference, with the published values: (table, case)."""

from __future__ import annotations

from tests.golden.golden_tables import Case, protocol

_PROMPT = "Write <answer> Beijing </answer>.<|im_start|>assistant\n"
_HINT = protocol("search_r1").invalid_hint or ""


def _turn(text: str, contents: str | None = None, observation: str = "") -> Case:
    documents = [] if contents is None else [{"title": "", "text": "", "contents": contents}]
    return {"text": text, "documents": documents, "observation": observation}


def _search_r1(golds: list[str], turns: list[Case], **published: float) -> Case:
    text = _PROMPT + "".join(turn["text"] + turn["observation"] for turn in turns)
    return {"solution_str": text, "golds": golds, "turns": turns, **published}


def _r1_searcher(golds: list[str], turns: list[Case], *published: float) -> Case:
    names = ("stage1_llama", "stage2_llama", "qwen_zero")
    response = "".join(turn["text"] + turn["observation"] for turn in turns)
    return {"response": response, "golds": golds, "turns": turns, **dict(zip(names, published, strict=True))}


def _mq(body: str, *queries: str) -> tuple[str, Case]:
    response = f"<search>{body}</search>"
    return "rag_r1_queries", {
        "mode": "mq",
        "response": response,
        "action": "search",
        "content": body.strip(),
        "queries": list(queries),
    }


_SEARCH = "<think>a</think><search>q</search>"
_SHOWN = "\n\n<information>Doc 1(Title: {})</information>\n\n"
_QUERY = "I look. <|begin_of_query|> q <|end_of_query|>"
_NONE = "\n\n<|begin_of_documents|>\nNone<|end_of_documents|>\n\n"
_ENDING = "So. </think> <answer> Ulm </answer>"

#: The difference's name: a table, and a case in its form.
EXAMPLES: dict[str, tuple[str, Case]] = {
    "hint read as an answer": (
        "search_r1_format",
        _search_r1(["Ulm"], [_turn("x", None, _HINT), _turn("y")], score=0.1, score_retrieval=0.1),
    ),
    "empty query": ("rag_r1_queries", _mq(" ")[1]),
    "tags inside documents": (
        "search_r1_format",
        _search_r1(
            ["Ulm"],
            [
                _turn(_SEARCH, "</think>", _SHOWN.format("</think>")),
                _turn("<think>b</think><answer>Ulm</answer>"),
            ],
            score=0.8,
            score_retrieval=0.8,
        ),
    ),
    "gold that normalises to nothing": (
        "r1_searcher_cover_em",
        {"prediction": "?", "golds": ["the"], "em": 1.0, "cover_em": 1.0, "f1": 0.0},
    ),
    "gold within a word": (
        "search_r1_format",
        _search_r1(
            ["Ind"],
            [
                _turn(_SEARCH, "India", _SHOWN.format("India")),
                _turn("<think>b</think><answer>x</answer>"),
            ],
            score=0.2,
            score_retrieval=0.3,
        ),
    ),
    "answer left open in an earlier turn": (
        "search_r1_em",
        _search_r1(
            ["Ulm"],
            [
                _turn("<answer>x<search>q</search>", "Ulm", _SHOWN.format("Ulm")),
                _turn("<answer>Ulm</answer>"),
            ],
            em=0.0,
        ),
    ),
    "text behind the first closing tag": (
        "rag_r1_queries",
        {
            "mode": "sq",
            "response": "<search>q<answer>x</answer></search>",
            "action": "search",
            "content": "q<answer>x</answer>",
            "queries": ["q<answer>x</answer>"],
        },
    ),
    "text behind the first answer": (
        "r1_searcher_rewards",
        _r1_searcher(["Ulm"], [_turn(_ENDING + " <answer> Jena </answer>")], -1.0, -1.0, -2.0),
    ),
    "search that finds nothing": (
        "r1_searcher_rewards",
        _r1_searcher(["Ulm"], [_turn(_QUERY, None, _NONE), _turn(_ENDING)], 1.5, 0.0, -1.0),
    ),
    "search opened again": _mq("Ulm<search>Jena", "Ulm<search>Jena"),
    "comma in a number": _mq("1,000 islands", "1", "000 islands"),
    "quoted queries and JSON lists": _mq('"Paris, Texas"', '"Paris', 'Texas"'),
    "repeated query": _mq("Ulm, ulm", "Ulm", "ulm"),
    "more than three queries": _mq("a, b, c, d", "a", "b", "c", "d"),
}
