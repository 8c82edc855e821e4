"""`rag-r1 train --estimate`, with vLLM, a retrieval server and the demo's policy."""

from __future__ import annotations

import re

import pytest

from rag_r1.demo.policy import policy_path
from rag_r1.demo.world import demo_protocol, write_demo
from rag_r1.tools.retrieval.local_server import build_index, retrieval_process
from rag_r1.training.command import main

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(600)]


def test_a_probe_says_how_long_a_step_and_the_training_take(tmp_path, capsys):
    write_demo(tmp_path / "data", demo_protocol("rag_r1_mq"), seed=1)
    build_index(tmp_path / "data" / "corpus.jsonl", tmp_path / "index", "--backend", "bm25")
    with retrieval_process(tmp_path / "index", tmp_path / "server.log") as url:
        changes = [
            f"data.train_files='{tmp_path / 'data' / 'train.parquet'}'",
            f"data.val_files='{tmp_path / 'data' / 'val.parquet'}'",
            f"actor_rollout_ref.model.path='{policy_path('rag_r1_mq')}'",
            "rag_r1.protocol=rag_r1_mq",
            f"rag_r1.retriever.url={url}",
            f"trainer.default_local_dir='{tmp_path / 'run'}'",
        ]
        assert main(["--estimate", "--recipe", "recipes/demo/grpo", *changes]) == 0
    printed = capsys.readouterr().out
    seconds = dict(re.findall(r"^\| (.+?) +\| +(\d+) \|$", printed, re.M))
    assert {"generating", "update", "a step"} <= seconds.keys()
    assert int(seconds["a step"]) >= int(seconds["generating"]) > 0
    assert re.search(r"^128 trajectories of \d+ tokens$", printed, re.M)
    assert re.search(r"^\d+ steps, and \d+ validations of \d+ questions: about \d+ minutes$", printed, re.M)
    assert "report:" not in printed, "the probe's own report is removed"
    assert not (tmp_path / "run").exists(), "nothing was trained"
