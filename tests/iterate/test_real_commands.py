"""A round of the real commands: the agent, behind an address, stays as it is; the retriever is made anew."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from rag_r1.demo.policy import policy_path
from rag_r1.iterate.command import main
from rag_r1.tools.retrieval.local_server import build_index
from tests.fakes.scored_world import scored_world
from tests.retriever.small_training import tiny_bert

pytestmark = [pytest.mark.slow, pytest.mark.full]

#: Python that puts a prepared encoder in the place of a training, and does all else.
PREPARED = """#!{python}
import os, shutil, sys
if sys.argv[3:5] == ["retriever", "train"]:
    shutil.copytree("{encoder}", sys.argv[sys.argv.index("--out") + 1] + "/model", dirs_exist_ok=True)
else:
    os.execv("{python}", ["{python}", *sys.argv[1:]])
"""


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(policy_path("rag_r1_sq"))


@pytest.mark.parametrize("training", ["prepared", "real"])
def test_a_round_of_the_real_commands_with_a_server_that_is_started_here(
    tmp_path: Path, tokenizer, training: str, monkeypatch, capsys
):
    encoder = tiny_bert(tmp_path / "bert")
    python = tmp_path / "python"
    python.write_text(PREPARED.format(python=sys.executable, encoder=encoder))
    python.chmod(0o755)
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "log.jsonl"))
    options = {"negatives": 3, "batch_size": 2, "epochs": 1, "device": "cpu", "no_progress": True}
    options |= {"model": str(encoder), "logger": "file"}
    (tmp_path / "retriever.yaml").write_text(yaml.safe_dump(options))
    with scored_world(tmp_path, tokenizer) as world:
        corpus = tmp_path / "corpus.jsonl"
        corpus.write_text("".join(json.dumps(passage) + "\n" for passage in world.world.passages))
        first = build_index(corpus, tmp_path / "first", "--backend", "bm25")
        answering = {
            "base_url": world.policy.url,
            "tokenizer": str(policy_path("rag_r1_sq")),
            "in_flight": 8,
            "retries": 1,
            "backoff_s": 0.01,
        }
        plan = {
            "agent": {"model": "policy", "protocol": "rag_r1_sq", "keys": ["rag_r1.retriever.topk=3"]},
            "data": {
                "questions": [str(world.data)],
                "options": {**answering, "utility": "correctness", "negatives": 3},
            },
            "retriever": {
                "recipe": str(tmp_path / "retriever.yaml"),
                "python": str(python) if training == "prepared" else None,
            },
            "index": {"first": str(first), "corpus": [str(corpus)], "options": {"device": "cpu"}},
            "server": {"options": ["--device", "cpu"]},
            "evaluation": {"questions": [str(world.data)], "options": answering},
        }
        (tmp_path / "loop.yaml").write_text(yaml.safe_dump(plan))
        words = ["--recipe", str(tmp_path / "loop.yaml"), "--out", str(tmp_path / "out"), "--rounds", "1"]
        said = main(words)
        output = capsys.readouterr()
        assert said == 0, output.err
        assert main(words) == 0  # nothing is left to do, and no server is started for that
    first, second = json.loads((tmp_path / "out" / "rounds.json").read_text())["rows"]
    assert first["em"]["value"] == 1.0 and first["searches"]["value"] > 1
    assert second["em"]["value"] < 1.0  # the encoder knows none of the words: the new index was really asked
    assert first["usage"]["requests"] > 0 and first["usage"]["prompt_tokens"] > 0
    assert second["usage"]["requests"] > 2 * first["usage"]["requests"]
    served = json.loads((tmp_path / "out" / "round1" / "reload" / "served.json").read_text())
    assert served["encoder"] == str(tmp_path / "out" / "round1" / "retriever" / "run" / "model")
    rows = (tmp_path / "out" / "round1" / "data" / "run" / "train.jsonl").read_text().splitlines()
    facts = json.loads((tmp_path / "out" / "round1" / "data" / "done.json").read_text())["facts"]
    assert len(rows) == facts["rows"] > 0
