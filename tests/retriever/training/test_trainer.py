"""`rag-r1 retriever train` on a tiny model: what it learns and leaves, and that a kill changes nothing."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from rag_r1.retriever.command import main as command
from rag_r1.retriever.training.command import main
from rag_r1.retriever.training.encoder_settings import SHARED, read_settings, settings_of_index
from rag_r1.retriever.training.trainer import remove_incomplete_checkpoints
from tests.retriever.small_training import PASSAGES, files, row, tiny_bert

pytestmark = pytest.mark.slow  # models are loaded and trained


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("models") / "bert")


def words(folder: Path, model: Path | str, rows=None, **options) -> list[str]:
    """The arguments of a small training."""
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    given_rows, corpus = files(data, rows)
    options = {
        "rows": given_rows,
        "corpus": corpus,
        "out": folder / "out",
        "model": model,
        "negatives": 2,
        "batch_size": 4,
        "epochs": 8,
        "learning_rate": 0.01,
        "temperature": 0.1,
        "device": "cpu",
        "logger": "file",
        **options,
    }
    flags = {f"--{name.replace('_', '-')}": value for name, value in options.items()}
    pairs = ([flag] if value is True else [flag, str(value)] for flag, value in flags.items())
    return [*(word for pair in pairs for word in pair), "--no-progress"]


def weights(folder: Path) -> str:
    return hashlib.sha256((folder / "out" / "model" / "model.safetensors").read_bytes()).hexdigest()


def newest(checkpoints: Path) -> int:
    """The step of the last checkpoint that is whole; 0 if there is none. (Older ones are deleted.)"""
    states = checkpoints.glob("checkpoint-*/trainer_state.json")
    return max((int(path.parent.name.rpartition("-")[2]) for path in states), default=0)


def losses(path: Path) -> list[float]:
    logged = [json.loads(line)["data"] for line in path.read_text().splitlines()]
    return [entry["retriever/loss"] for entry in logged if "retriever/loss" in entry]


def test_a_number_format_that_the_device_lacks_is_refused(tmp_path, bert, monkeypatch, capsys):
    monkeypatch.setattr("transformers.training_args.is_torch_bf16_gpu_available", lambda: False)
    assert main(words(tmp_path, bert, device="auto", precision="bf16")) == 1
    assert "--precision bf16 cannot be used with --device auto" in capsys.readouterr().err


@pytest.fixture
def log(tmp_path, monkeypatch) -> Path:
    """Where veRL's logger `file` writes."""
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "log.jsonl"))
    return tmp_path / "log.jsonl"


def test_a_trained_retriever_is_indexed_and_served_with_the_settings_of_its_training(
    tmp_path, bert, log, capsys
):
    from retrieval_server.indexing.builder import build_index
    from retrieval_server.indexing.options import BuildOptions
    from retrieval_server.search.index_source import IndexSource

    prefixes = {"query_prefix": "query ", "passage_prefix": "passage "}
    settings = {**prefixes, "separator": " what ", "max_length": 40}
    assert main(words(tmp_path, bert, logging_steps=2, **settings)) == 0
    folder = tmp_path / "out" / "model"
    assert capsys.readouterr().out.splitlines()[-1] == f"model: {folder}"
    trained = read_settings(folder)
    assert trained is not None and {name: getattr(trained, name) for name in settings} == settings
    assert trained.mode == "agentic" and trained.trained["rows"] == 12
    logged = losses(log)
    assert logged[-1] < logged[0] / 2

    corpus = tmp_path / "data" / "corpus.jsonl"
    options = {"backend": "dense", "encoder": str(folder), "device": "cpu", "progress": False}
    build_index(BuildOptions(corpus=corpus, out=tmp_path / "index", **options))
    shared = {name: getattr(trained, name) for name in (*SHARED, "mode")}
    assert settings_of_index(tmp_path / "index") == shared
    source = IndexSource.open(tmp_path / "index", device="cpu")
    assert (source.description.separator, source.description.max_length) == (" what ", 40)
    queries = [f"{entry['question']} what {entry['query_text']}" for entry in map(row, range(12))]
    first = [hits[0].passage.id for hits in source.search(queries, 1)]
    assert sum(name == f"p{i}" for i, name in enumerate(first)) >= 9


def test_a_run_that_is_killed_and_resumed_ends_with_the_same_bytes(tmp_path, bert, log):
    # Averaged: with the weights that the training started from, not those that it goes on from.
    options = {"save_steps": 2, "average_weights": 0.7}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert main(words(whole, bert, **options)) == 0
    # Another number of threads rounds sums otherwise, and earlier tests may have set that of this process.
    code = (
        f"import sys, torch; torch.set_num_threads({torch.get_num_threads()})\n"
        "from rag_r1.retriever.training.command import main; sys.exit(main(sys.argv[1:]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, *words(killed, bert, **options)])
    checkpoints = killed / "out" / "checkpoints"
    try:
        while newest(checkpoints) < 4:
            assert process.poll() is None, "the training ended before it could be killed"
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    assert not (killed / "out" / "model").exists()
    # What a kill while a checkpoint is written leaves behind.
    (checkpoints / "checkpoint-900").mkdir()
    (checkpoints / "checkpoint-901").mkdir()
    (checkpoints / "checkpoint-901" / "trainer_state.json").write_text('{"epoch": ')
    resumed = remove_incomplete_checkpoints(checkpoints)
    assert resumed is not None and int(resumed.name.rpartition("-")[2]) >= 4
    assert {path.name for path in checkpoints.iterdir()}.isdisjoint({"checkpoint-900", "checkpoint-901"})
    assert main(words(killed, bert, **options)) == 0
    assert weights(killed) == weights(whole)
    assert not checkpoints.exists()


def test_a_checkpoint_that_cannot_be_read_at_the_moment_is_kept(tmp_path):
    state = tmp_path / "checkpoint-4" / "trainer_state.json"
    state.mkdir(parents=True)  # any error of reading but that there is no such file
    with pytest.raises(IsADirectoryError):
        remove_incomplete_checkpoints(tmp_path)
    assert state.is_dir()


def test_a_finished_run_is_not_done_again_and_other_settings_or_data_are_refused(tmp_path, bert, log, capsys):
    assert main(words(tmp_path, bert, epochs=1)) == 0
    before = (tmp_path / "out" / "model" / "model.safetensors").stat().st_mtime_ns
    checkpoint = tmp_path / "out" / "checkpoints" / "checkpoint-3"
    checkpoint.mkdir(parents=True)  # as a kill behind the model leaves it
    assert main(words(tmp_path, bert, epochs=1, logging_steps=3)) == 0
    assert not checkpoint.parent.exists()
    assert (tmp_path / "out" / "model" / "model.safetensors").stat().st_mtime_ns == before
    assert main(words(tmp_path, bert, epochs=2)) == 1
    assert "training.epochs was 1.0 and is now 2.0" in capsys.readouterr().err
    assert main(words(tmp_path, bert, [row(n) for n in range(1, 13)], epochs=1)) == 1
    assert "data was" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [{"mini_batch": 3}, {"lora": True, "lora_dropout": 0.0}, {"rank_weight": 0.5}], ids=str
)
def test_variants_train_and_leave_an_ordinary_model(tmp_path, bert, log, options):
    from safetensors import safe_open
    from sentence_transformers import SentenceTransformer

    assert main(words(tmp_path, bert, logging_steps=2, **options)) == 0
    logged = losses(log)
    assert logged[-1] < logged[0]
    with safe_open(tmp_path / "out" / "model" / "model.safetensors", "pt") as tensors:
        assert not [name for name in tensors.keys() if "lora" in name or "base_layer" in name]
    model = SentenceTransformer(str(tmp_path / "out" / "model"), device="cpu")
    before = SentenceTransformer(str(bert), device="cpu")
    text = PASSAGES["p0"]
    assert abs(model.encode(text) - before.encode(text, normalize_embeddings=True)).max() > 1e-3


@pytest.mark.parametrize("options", [{}, {"lora": True, "lora_dropout": 0.0}], ids=["full", "lora"])
def test_averaged_weights_lie_between_those_before_and_after_the_training(tmp_path, bert, log, options):
    from safetensors.torch import load_file

    def weights_at(share: float) -> dict[str, torch.Tensor]:
        folder = tmp_path / str(share)
        assert main(words(folder, bert, epochs=2, average_weights=share, **options)) == 0
        return load_file(folder / "out" / "model" / "model.safetensors")

    before, after, averaged = load_file(bert / "model.safetensors"), weights_at(1.0), weights_at(0.25)
    assert before.keys() == after.keys() == averaged.keys()
    assert any((after[name] - before[name]).abs().max() > 1e-3 for name in before)
    for name, start in before.items():
        assert torch.allclose(averaged[name], start + 0.25 * (after[name] - start), atol=1e-6), name


@pytest.mark.full
@pytest.mark.parametrize("options", [{}, {"lora": True}], ids=["full", "lora"])
def test_two_processes_train_one_model_step_by_step(tmp_path, bert, log, options):
    """A layer that nothing reads, such as BERT's pooler, would stop them at the second step."""
    args = words(tmp_path, bert, epochs=1, logging_steps=1, **options)
    together = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, "-m", *together, "-m", "rag_r1.cli", "retriever", "train", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ})
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(losses(log)) == 3
    assert re.findall(r"^model: .*/out/model$", done.stdout, re.MULTILINE)
    assert read_settings(tmp_path / "out" / "model") is not None


@pytest.mark.parametrize("lora", [False, True])
def test_a_layer_that_no_vector_depends_on_is_not_trained(bert, lora):
    from sentence_transformers import SentenceTransformer

    from rag_r1.retriever.training.encoder import add_lora, freeze_unused

    model = SentenceTransformer(str(bert), device="cpu")
    assert freeze_unused(model) == ["pooler.dense"]
    if lora:
        add_lora(model, 4, 8, 0.0)
    model(model.preprocess(["the red cat"]))["sentence_embedding"].sum().backward()
    trained = {name: entry for name, entry in model.named_parameters() if entry.requires_grad}
    assert trained and not [name for name, entry in trained.items() if entry.grad is None]


def test_a_training_goes_on_from_a_trained_retriever_with_its_settings(tmp_path, bert, log):
    first = words(tmp_path / "one", bert, epochs=1, separator=" what ", mode="history")
    assert main(first) == 0
    model = tmp_path / "one" / "out" / "model"
    assert main(words(tmp_path / "two", model, epochs=1)) == 0
    again = read_settings(tmp_path / "two" / "out" / "model")
    assert again is not None and (again.separator, again.mode) == (" what ", "history")


def test_a_bare_model_needs_its_pooling(tmp_path, log, capsys):
    bare = tiny_bert(tmp_path / "bare", sentence=False)
    assert main(words(tmp_path, bare)) == 1
    assert "bare transformers folder, so its pooling is unknown: give --pooling" in capsys.readouterr().err
    assert main(words(tmp_path, bare, pooling="cls", epochs=1)) == 0
    trained = read_settings(tmp_path / "out" / "model")
    assert trained is not None and trained.pooling == "cls"


def test_what_cannot_be_trained_is_said_before_it_starts(tmp_path, bert, log, capsys):
    assert main(words(tmp_path, bert, batch_size=64)) == 1
    assert "12 rows are fewer than a batch of 64: give --batch-size 12" in capsys.readouterr().err
    assert main(words(tmp_path, tmp_path / "nowhere")) == 1
    assert "nowhere does not exist: give a folder" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_command_knows_train(capsys):
    with pytest.raises(SystemExit):
        command(["train", "--help"])
    assert "known to answer the\nquery" in capsys.readouterr().out
