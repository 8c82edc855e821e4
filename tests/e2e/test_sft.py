"""The demo policy fine-tuned through veRL's SFT trainer, with the commands of docs/guides/sft.md."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rag_r1.demo.policy import load_policy, policy_path

ROOT = Path(__file__).parents[2]


def run(*command: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)], cwd=ROOT, capture_output=True, text=True, timeout=1000
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.e2e
@pytest.mark.full
def test_traces_become_a_policy_that_rag_r1_train_can_start_from(tmp_path):
    """Traces, data, two epochs through veRL, an exported model; a second start has nothing left to do."""
    start, out = policy_path("rag_r1_mq"), tmp_path / "run"
    run("rag_r1.demo.trace_records", "--out", tmp_path / "traces", "--mix", "gold", "--batches", "3")
    prompt = ROOT / "rag_r1" / "demo" / "prompt.txt"
    run("rag_r1.sft.data", "--traces", tmp_path / "traces", "--model", start, "--prompt", prompt,
        "--protocol", "rag_r1_mq", "--validation", "0.3", "--out", tmp_path / "data")  # fmt: skip
    train = ["rag_r1.sft.train_command", "--recipe", "recipes/rag_r1/sft/demo", "--data", tmp_path / "data",
             f"model.path={start}", f"trainer.default_local_dir={out}", "trainer.total_epochs=2"]  # fmt: skip
    output = run(*train)
    assert "validation loss" in output and "the lowest of 2" in output
    logged = [json.loads(line)["data"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = [entry["train/loss"] for entry in logged if "train/loss" in entry]
    assert len(losses) == int((out / "latest_checkpointed_iteration.txt").read_text())
    assert losses[-1] < losses[0]
    model, tokenizer = load_policy(out / "model")
    before, _ = load_policy(start)
    assert len(tokenizer) == model.config.vocab_size == before.config.vocab_size
    weights, old = model.state_dict(), before.state_dict()
    assert weights.keys() == old.keys()
    assert any(not torch.equal(weights[name], old[name]) for name in weights)
    again = run(*train)
    assert "validation loss" in again and not (out / "metrics.jsonl").read_text().strip()
