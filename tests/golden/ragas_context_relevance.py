"""Writes ragas_context_relevance.json: what RAGAS's ContextRelevance makes of scripted judges' replies.

    python -m venv ragas-env && ragas-env/bin/pip install 'ragas==0.4.*' 'langchain-community<0.4'
    ragas-env/bin/python tests/golden/ragas_context_relevance.py

RAGAS runs here as it is, against an OpenAI-compatible endpoint on the loopback interface that replies to each
of its two judges as the case says. The texts and the replies are ours; its prompts are not kept. `ragas` is
its value: null for nan, a text for the exception that it raised; `requests` is whether it asked a judge.
`here` is the value of our term, null if the term is left out, and `why` the reason where we differ on
purpose. tests/rewards/test_ragas.py compares our term with the table.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_suffix(".json")
QUESTION = "Which river flows through Ulm?"
CONTEXTS = ["Ulm lies in the south of Germany.", "The Danube flows through Ulm."]
GRADES = ("0", "1", "2")
#: What no judge should say, as text.
UNUSABLE = ("3", "-1", "1.5", "two", "I cannot tell.", "")
NO_GRADE = "neither judge has a usable grade: the term is left out and flagged, not nan or 0"
NOTHING = "nothing to judge: an episode without a search is worth 0, and RAGAS refuses it"


def cases() -> list[dict[str, Any]]:
    """The inputs, and the replies of the two judges."""
    rows = [(QUESTION, CONTEXTS, pair) for pair in product(GRADES, repeat=2)]
    rows += [(QUESTION, CONTEXTS, pair) for bad in UNUSABLE for pair in (("2", bad), (bad, "1"), (bad, bad))]
    rows += [
        (question, contexts, ("2", "2"))
        for question, contexts in (
            (QUESTION, CONTEXTS[1:]),
            (QUESTION, [""]),
            (QUESTION, [" ", "\n"]),
            (QUESTION, [QUESTION]),
            (QUESTION, ["river flows"]),
            (f" {QUESTION}\n", [f"{QUESTION} "]),
            (QUESTION, [f"{QUESTION} The Danube."]),
            (" ", CONTEXTS),
            ("", CONTEXTS),
            (QUESTION, []),
        )
    ]
    return [{"question": q, "contexts": c, "judges": list(judges)} for q, c, judges in rows]


class Judges(ThreadingHTTPServer):
    """The endpoint: replies to the first judge, whose prompt contains `first`, and to the second."""

    def __init__(self, first: str):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.first, self.replies, self.requests = first, ["", ""], 0


class _Handler(BaseHTTPRequestHandler):
    server: Judges

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests += 1
        texts = json.dumps(body["messages"], ensure_ascii=False)
        reply = self.server.replies[self.server.first not in texts]
        # RAGAS asks for an object with the grade; what is no number is said in plain words.
        text = f'{{"rating": {reply}}}' if _is_number(reply) else reply
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if body.get("tools"):
            function = {"name": body["tools"][0]["function"]["name"], "arguments": text}
            message = {"role": "assistant", "content": None, "tool_calls": [
                {"id": "1", "type": "function", "function": function}]}  # fmt: skip
        answer = {"id": "1", "object": "chat.completion", "created": 0, "model": body["model"],
                  "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                  "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}  # fmt: skip
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *unused: object) -> None:
        """Nothing is logged."""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def completed(case: dict[str, Any], value: float | None | str, has_asked: bool) -> dict[str, Any]:
    """The case with RAGAS's value and ours."""
    row = {**case, "ragas": value, "requests": has_asked, "here": value}
    if value is None:
        return {**row, "why": NO_GRADE}
    return {**row, "here": 0.0, "why": NOTHING} if isinstance(value, str) else row


async def measure() -> list[dict[str, Any]]:
    """All cases, run by RAGAS."""
    from openai import AsyncOpenAI
    from ragas.llms import llm_factory
    from ragas.metrics.collections import ContextRelevance
    from ragas.metrics.collections.context_relevance.util import ContextRelevanceJudge1Prompt

    with Judges(ContextRelevanceJudge1Prompt.instruction.splitlines()[0][:60]) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = AsyncOpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none")
        metric = ContextRelevance(llm=llm_factory("judge", client=client))
        rows = []
        for case in cases():
            server.replies, server.requests = case["judges"], 0
            try:
                value: float | None | str = (await metric.ascore(case["question"], case["contexts"])).value
                value = None if math.isnan(value) else value
            except ValueError as error:
                value = type(error).__name__
            rows.append(completed(case, value, server.requests > 0))
        server.shutdown()
    return rows


def main() -> None:
    from importlib.metadata import version

    table = {"ragas": version("ragas"), "cases": asyncio.run(measure())}
    TABLE.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{len(table['cases'])} cases of ragas {table['ragas']}: {TABLE}")


if __name__ == "__main__":
    main()
