"""The demo's evaluation: within the limits of the demo's recipes."""

from __future__ import annotations

from pathlib import Path

import pytest

from rag_r1.demo.eval_arguments import NO_CACHE, demo_eval_arguments
from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.options.command_line import read_arguments


@pytest.mark.parametrize(
    ("protocol", "topk", "response"), [("rag_r1_sq", 2, 416), ("rag_r1_mq", 2, 416), ("r1_searcher", 3, 448)]
)
def test_the_arguments_have_the_limits_of_the_demos_recipes(protocol, topk, response):
    evaluation = demo_eval_arguments(Path("m"), Path("q"), protocol, "http://u", Path("o"), NO_CACHE)
    assert read_arguments(EvalArguments, evaluation.to_argv(), description="") == evaluation
    assert (evaluation.protocol, evaluation.max_response_tokens) == (protocol, response)
    keys = {f"rag_r1.retriever.topk={topk}", "rag_r1.agent.max_turns=3", NO_CACHE}
    assert keys <= set(evaluation.overrides)
    assert evaluation.overrides[-1] == NO_CACHE, "of one key, the last counts"
    assert "{question}" in Path(evaluation.prompt).read_text()
