"""One real training of each kind through veRL, Ray, FSDP and vLLM on this CPU, with a live retrieval server.

What the trainer was given is read inside the actor's training engine itself (see recording_engine.py) and
compared, token by token, with the trajectories that the reward manager dumped.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from rag_r1.demo.policy import policy_path
from rag_r1.demo.report import read_records
from rag_r1.demo.run import run_demo

pytestmark = pytest.mark.e2e

STEPS, VALIDATION = 2, 12
SMALL = [
    f"trainer.total_training_steps={STEPS}",
    "trainer.test_freq=2",
    f"data.val_max_samples={VALIDATION}",
    "actor_rollout_ref.model.external_lib=recording_engine",
]
MODES = {
    "grpo": [*SMALL, "data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4"],
    "ppo_sq": [
        *SMALL,
        "data.train_batch_size=16",
        "actor_rollout_ref.actor.ppo_mini_batch_size=16",
        "critic.ppo_mini_batch_size=16",
    ],
}
ROWS = {"grpo": 4 * 8 * STEPS, "ppo_sq": 16 * STEPS}


@pytest.fixture(scope="module", params=MODES)
def trained(request, tmp_path_factory):
    """A finished run: its recipe, folder, results, and what the recording engine wrote beside them."""
    recipe = request.param
    out = tmp_path_factory.mktemp(recipe)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERL_ENGINE_VENDOR", "recording")
        patch.setenv("RAG_R1_RECORD", str(out))
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        results = run_demo(recipe, out, seed=1, overrides=MODES[recipe], timeout_s=900)
    return recipe, out, results


def rows_of(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "actor.jsonl").read_text().splitlines()]


def tokens(row: dict, mask: int) -> list[int]:
    return [token for token, m in zip(row["responses"], row["response_mask"], strict=True) if m == mask]


def records_of(out: Path, split: str) -> list[dict]:
    return [record for records in read_records(out / "trajectories" / split).values() for record in records]


def test_every_sample_of_every_step_is_scored_and_trained_on_once(trained):
    recipe, out, results = trained
    assert results["trajectories"] == len(rows_of(out)) == ROWS[recipe]
    assert sorted(results["held_out"]) == [0, STEPS]
    assert len(records_of(out, "val")) == 2 * VALIDATION
    ids = Counter((record["step"], record["id"]) for record in records_of(out, "train"))
    assert set(ids.values()) == {1}


def test_the_actor_is_trained_on_what_the_policy_wrote_and_on_nothing_else(trained):
    recipe, out, _ = trained
    records = records_of(out, "train")
    tokenizer = AutoTokenizer.from_pretrained(policy_path(records[0]["protocol"]))
    written = Counter("".join(turn["text"] for turn in record["turns"]) for record in records)
    trained_on = Counter(tokenizer.decode(tokens(row, 1), skip_special_tokens=True) for row in rows_of(out))
    assert trained_on == written


def test_observations_are_in_the_actors_context_but_outside_its_loss(trained):
    recipe, out, _ = trained
    rows = rows_of(out)
    protocol = records_of(out, "train")[0]["protocol"]
    tokenizer = AutoTokenizer.from_pretrained(policy_path(protocol))
    searched = [row for row in rows if tokens(row, 0)]
    assert len(searched) > len(rows) // 4
    for row in searched:
        observed = tokenizer.decode(tokens(row, 0))
        assert observed.startswith("\n<information>\n") and observed.endswith("\n</information>\n")
        assert "<information>" not in tokenizer.decode(tokens(row, 1))
        assert row["response_mask"][0] == row["response_mask"][-1] == 1
    for row in rows:
        assert row["loss_mask"][-len(row["responses"]) :] == row["response_mask"]
        assert row["input_ids"] == row["prompts"] + row["responses"]


def test_documents_in_the_context_came_from_the_server(trained):
    _, out, _ = trained
    corpus = {json.loads(line)["id"] for line in (out / "data" / "corpus.jsonl").read_text().splitlines()}
    shown = [
        doc["id"]
        for record in records_of(out, "train")
        for t in record["turns"]
        for docs in t["documents"]
        for doc in docs
    ]
    assert shown and set(shown) <= corpus


def test_no_search_failed_and_the_metrics_of_the_terms_are_logged(trained):
    _, out, _ = trained
    entries = [json.loads(line)["data"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [entry for entry in entries if "search/em" in entry]
    assert len(steps) == STEPS
    for entry in steps:
        assert entry["search/tool_failures"] == entry["search/bad_row"] == 0
        assert entry["search/score"] == pytest.approx(entry["critic/score/mean"], abs=1e-5)  # 2^-16 apart


def test_rollout_and_actor_agree_on_the_probability_of_every_token(trained):
    # The demo takes vLLM's log-probabilities as the old ones and makes one update a step, so PPO's KL and
    # clipping compare vLLM's probabilities with the actor's own for the same tokens and weights.
    _, out, _ = trained
    entries = [json.loads(line)["data"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    updates = [entry for entry in entries if "actor/ppo_kl" in entry]
    assert len(updates) == STEPS
    for entry in updates:
        assert abs(entry["actor/ppo_kl"]) < 1e-4 and entry["actor/pg_clipfrac"] == 0


def test_the_run_ends_with_a_table_and_a_picture(trained):
    _, out, _ = trained
    assert (out / "report.png").read_bytes().startswith(b"\x89PNG")
    table = (out / "report.md").read_text()
    rows = ("EM all", "EM one_hop", "EM bridge", "searches a question", "turns a question")
    assert all(row in table for row in rows)
