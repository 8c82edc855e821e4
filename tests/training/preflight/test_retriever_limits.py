"""Preflight of sizes: what the retrieval server is asked at once and for how long; buckets of weights."""

from __future__ import annotations

import json
import math
import struct
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rag_r1.tools.retrieval.options import RetrieverConfig
from rag_r1.training.preflight import PreflightReport, check_retriever
from rag_r1.training.preflight.retriever_limits import check_limits, limits_in
from rag_r1.training.preflight.weight_transfer import check_bucket, largest_tensor
from retrieval_server.engine.options import EngineOptions
from tests.fakes.json_server import Asked, JsonStub
from tests.fakes.retriever import results
from tests.recipes.composed_recipes import changed, composed

pytestmark = pytest.mark.slow  # composed recipes

RECIPE = "recipes/rag_r1/grpo"
BUCKET = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"
WORKERS = "actor_rollout_ref.rollout.agent.num_workers"


def limits_of_our_server(**changed: float) -> dict[str, float]:
    """As `GET /health` of a server tells them that was started without options."""
    options = EngineOptions()
    limits = {"max_queue": options.max_queue, "deadline_s": options.deadline_s}
    return {**limits, "max_queries": 2048, "max_topk": 100, **changed}


def problems_with(*overrides: str, **limits: float):
    config = composed(RECIPE, *overrides, "rag_r1.retriever.url=http://127.0.0.1:8000")
    settings = RetrieverConfig.from_config(
        {key: value for key, value in config.rag_r1.retriever.items() if key != "tool"}
    )
    return [*check_limits(config, settings, limits_of_our_server(**limits))]


def test_the_defaults_of_client_and_server_fit_each_other():
    assert problems_with() == []
    defaults = RetrieverConfig()
    shipped = composed(RECIPE).rag_r1.retriever
    for key in ("timeout_s", "max_connections", "max_queries"):
        assert shipped[key] == getattr(defaults, key), "a recipe without the key has the same"


def test_more_queries_at_once_than_the_server_takes_are_warned_of_with_the_numbers():
    (problem,) = problems_with("rag_r1.retriever.max_connections=64")
    assert (problem.level, problem.where) == ("warning", "rag_r1.retriever.max_connections")
    assert "8 agent workers x 64 connections x 16 queries" in problem.what
    assert "8192" in problem.what and "4096" in problem.what
    assert "at most 32" in problem.remedy and "--max-queue 8192" in problem.remedy
    (problem,) = problems_with(f"{WORKERS}=16")
    assert "at most 16" in problem.remedy
    assert problems_with("rag_r1.retriever.max_connections=64", f"{WORKERS}=4") == []
    assert "takes 1234567 " in problems_with(f"{WORKERS}=9999", max_queue=1234567)[0].what
    (problem,) = problems_with(max_queue=64)
    assert problem.remedy.startswith("start the server with"), "no number of connections is few enough"


def test_a_time_out_below_the_servers_deadline_is_warned_of_with_both():
    (problem,) = problems_with("rag_r1.retriever.timeout_s=30")
    assert (problem.level, problem.where) == ("warning", "rag_r1.retriever.timeout_s")
    assert "30 s" in problem.what and "60 s" in problem.what and "--deadline 30" in problem.remedy
    assert "to at least 60," in problem.remedy
    assert problems_with("rag_r1.retriever.timeout_s=30", deadline_s=20.0) == []


def test_a_request_of_more_queries_than_the_server_takes_in_one_is_warned_of():
    (problem,) = problems_with(max_queries=8.5)
    assert problem.where == "rag_r1.retriever.max_queries" and "at most 8" in problem.remedy


@pytest.mark.parametrize(
    "health",
    [
        *[{"status": "ok"}, {"limits": None}, {"limits": [1]}, [], "ok", None],
        *({"limits": {"max_queue": wrong}} for wrong in ("many", 10**400, -math.inf, math.nan, -1, True)),
    ],
)
def test_what_a_server_does_not_tell_is_not_compared(health):
    assert not limits_in(health)
    config = composed(RECIPE)
    settings = RetrieverConfig(max_connections=1000, timeout_s=1)
    assert [*check_limits(config, settings, limits_in(health) or {})] == []


def report_of(health: str, *overrides: str, path: str = "") -> PreflightReport:
    """What is reported of a retrieval server with this answer at /health, at an address with this path."""
    documents = results([[(str(n), "text") for n in range(3)]], score=1.0)

    def answer(request: Asked):
        return (200, health) if request.path == "/health" else {} if request.method == "GET" else documents

    report = PreflightReport()
    with JsonStub(answer) as server:
        check_retriever(composed(RECIPE, f"rag_r1.retriever.url={server.url}{path}", *overrides), report)
    return report


@pytest.mark.parametrize("path", ["", "/indexes/wiki"])
def test_the_limits_are_those_that_the_server_tells(path):
    health = json.dumps({"status": "ok", "limits": limits_of_our_server(deadline_s=90.0)})
    (problem,) = report_of(health, path=path).problems
    assert problem.where == "rag_r1.retriever.timeout_s" and "90 s" in problem.what


def test_a_wrong_number_of_workers_does_not_end_the_report():
    assert problems_with(f"{WORKERS}=many") == []


@pytest.mark.parametrize(
    "health",
    ['{"status": "ok"}', "all is well", "[" * 100_000, f'{{"limits": {{"max_queue": {"9" * 400}}}}}'],
)
def test_a_server_without_limits_is_noted_and_good_enough(health):
    report = report_of(health, "rag_r1.retriever.timeout_s=5")
    assert report.problems == [] and any("does not say its limits" in note for note in report.notes)


# --- buckets of weights


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model whose largest tensor has 3 M values: 12 MiB in fp32 (rounded up), 6 in bf16."""
    values = {"small": torch.zeros(4, 4, dtype=torch.bfloat16)}
    save_file(values, tmp_path / "model-1.safetensors", metadata={"format": "pt"})
    save_file({"large": torch.zeros(3, 1 << 20, dtype=torch.bfloat16)}, tmp_path / "model-2.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 10, "hidden_size": 10}))
    return tmp_path


def bucket_problems(model: Path, *overrides: str):
    return [*check_bucket(composed(RECIPE, f"actor_rollout_ref.model.path={model}", *overrides))]


def test_a_bucket_smaller_than_the_largest_tensor_is_refused_where_verl_would_end(model):
    (problem,) = bucket_problems(model, "platform=cpu", f"{BUCKET}=11")
    assert (problem.level, problem.where) == ("error", BUCKET)
    assert "large" in problem.what and "12 MB in fp32" in problem.what
    assert problem.remedy == "set it to at least 12"
    assert bucket_problems(model, "platform=cpu", f"{BUCKET}=12") == []


def test_on_a_gpu_where_verl_sends_such_a_tensor_alone_it_is_a_warning(model):
    (problem,) = bucket_problems(model, f"{BUCKET}=11")
    assert (problem.level, problem.where) == ("warning", BUCKET) and "set it to 12" in problem.remedy
    (problem,) = bucket_problems(
        model, f"{BUCKET}=11", "actor_rollout_ref.rollout.checkpoint_engine.backend=mooncake"
    )
    assert problem.level == "error"


def test_the_bytes_are_those_of_the_dtype_in_which_weights_are_trained(model):
    bf16 = "actor_rollout_ref.actor.fsdp_config.model_dtype=bf16"
    assert bucket_problems(model, f"{BUCKET}=6", bf16) == []
    assert bucket_problems(model, f"{BUCKET}=5", bf16)


def test_of_adapters_that_are_not_merged_only_they_are_sent(model):
    path = f"actor_rollout_ref.model.path={model}"
    lora = composed("recipes/agentic_rag/grpo_lora", path, f"{BUCKET}=1")
    assert [*check_bucket(lora)] == []
    assert [*check_bucket(changed(lora, actor_rollout_ref__model__lora__merge=True))]


def test_without_weights_the_embeddings_of_the_configuration_count(model):
    for file in model.glob("*.safetensors"):
        file.unlink()
    assert largest_tensor(model) == ("the embedding", 100)
    (model / "config.json").write_text("[]")
    assert largest_tensor(model) is None and bucket_problems(model, f"{BUCKET}=1") == []


@pytest.mark.parametrize("content", [b"", b"{}", struct.pack("<Q", 1 << 60), struct.pack("<Q", 4) + b"nope"])
def test_a_broken_file_of_weights_is_left_to_those_who_load_it(model, content):
    (model / "model-2.safetensors").write_bytes(content)
    assert largest_tensor(model) == ("small", 16)


def test_verl_asserts_that_a_tensor_fits_into_a_bucket_of_shared_memory(tmp_path):
    """The reason for the error; if veRL no longer does so, it can go."""
    import asyncio

    import zmq
    from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender

    handle = f"ipc://{tmp_path}/weights.sock"
    receiver = zmq.Context.instance().socket(zmq.REP)
    receiver.connect(handle)

    def take_the_bucket() -> None:
        receiver.recv_pyobj()
        receiver.send(b"")

    thread = threading.Thread(target=take_the_bucket, daemon=True)
    thread.start()
    weights = iter([("large", torch.zeros((1 << 18) + 1))])
    sender = BucketedWeightSender(handle, bucket_size_mb=1, use_shm=True)
    with pytest.raises(AssertionError, match="too large to fit in the bucket"):
        asyncio.run(sender.async_send_weights(weights))
    thread.join(10)
    receiver.close(linger=0)


def test_the_server_of_the_validation_is_tried_too():
    dead = "http://127.0.0.1:1"
    report = report_of('{"status": "ok"}', f"+rag_r1.validation_retriever.url={dead}")
    (problem,) = report.errors
    assert problem.where == "rag_r1.validation_retriever.url" and dead in problem.what


def test_more_documents_than_the_server_gives_are_told_by_the_key_of_their_number():
    def answer(request: Asked):
        return (413, '{"error": "too_large", "reason": "topk 500"}') if request.path == "/retrieve" else {}

    report = PreflightReport()
    with JsonStub(answer) as server:
        overrides = ["rag_r1.retriever.topk=500", f"rag_r1.retriever.url={server.url}"]
        check_retriever(composed(RECIPE, *overrides), report)
    (problem,) = report.errors
    assert problem.where == "rag_r1.retriever.topk" and "500" in problem.what
