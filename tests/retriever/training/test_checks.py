"""What is wrong with a retriever's training is reported at once, before a model is loaded."""

from __future__ import annotations

import shutil
from unittest.mock import Mock

import huggingface_hub
import pytest

from rag_r1.retriever.training import command
from rag_r1.retriever.training.command import main
from tests.retriever.small_training import files, row, tiny_bert, write_lines


def test_nine_planted_problems_are_reported_in_one_run(tmp_path, capsys):
    (tmp_path / "out").touch()
    (tmp_path / "corpus.txt").touch()
    bad = write_lines(tmp_path / "bad.jsonl", row(0), {"dataset": "animals"})
    few = write_lines(tmp_path / "few.jsonl", row(0))
    empty = write_lines(tmp_path / "empty.jsonl")
    rows = [tmp_path / "none.jsonl", bad, few, few, empty]
    words = ["--rows", *map(str, rows), "--negatives", "2"]
    words += ["--corpus", str(tmp_path / "absent.jsonl"), str(tmp_path / "corpus.txt")]
    words += ["--model", str(tmp_path / "no-model"), "--index", str(tmp_path / "no-index")]
    named = ["none.jsonl", "bad.jsonl, line 2", "absent.jsonl", "corpus.txt", "no-index", "is a file"]
    named += ["no-model", "no training rows in", "is given twice"]
    for check in ([], ["--check-only"]):
        assert main([*words, "--out", str(tmp_path / "out"), *check]) == 1
        message = capsys.readouterr().err
        assert [name for name in named if name not in message] == [] and "9 problems" in message


def test_a_model_that_cannot_be_loaded_is_refused_by_its_file_or_its_name_on_the_hub(
    tmp_path, capsys, monkeypatch
):
    rows, corpus = files(tmp_path)
    words = ["--rows", str(rows), "--corpus", str(corpus), "--negatives", "2", "--batch-size", "2"]
    words += ["--out", str(tmp_path / "out"), "--check-only", "--model"]
    whole = tiny_bert(tmp_path / "whole")
    for file in ("model.safetensors", "tokenizer.json", "config.json", "modules.json"):
        broken = shutil.copytree(whole, tmp_path / file.partition(".")[0])
        (broken / file).unlink() if file.startswith("model.") else (broken / file).write_text("[")
        assert main([*words, str(broken)]) == 1, file
        message = capsys.readouterr().err
        assert str(broken) in message and file.replace("model.", "*.") in message
    monkeypatch.setattr(huggingface_hub, "snapshot_download", Mock(side_effect=OSError("404")))
    assert main([*words, "nosuch/encoder"]) == 1
    assert "nosuch/encoder" in capsys.readouterr().err
    monkeypatch.setattr(huggingface_hub, "snapshot_download", Mock(return_value=whole))
    assert main([*words, "owner/encoder"]) == 0


@pytest.mark.parametrize("name", ["model", "checkpoints"])
def test_a_folder_whose_model_or_checkpoints_are_of_no_run_is_refused_as_out(tmp_path, capsys, name):
    rows, corpus = files(tmp_path)
    words = ["--rows", str(rows), "--corpus", str(corpus), "--negatives", "2", "--batch-size", "2"]
    words += ["--model", str(tiny_bert(tmp_path / "encoder")), "--out", str(tmp_path / "out"), "--check-only"]
    (tmp_path / "out" / name).mkdir(parents=True)
    assert main(words) == 1 and f"holds {name}, not" in capsys.readouterr().err
    (tmp_path / "out" / "journal").mkdir()
    assert main(words) == 0


def test_a_model_in_the_folder_of_an_unknown_user_is_named(tmp_path, capsys):
    rows, corpus = files(tmp_path)
    words = ["--rows", str(rows), "--corpus", str(corpus), "--negatives", "2", "--batch-size", "2"]
    name = "~nobody-of-this-name/model"
    assert main([*words, "--model", name, "--out", str(tmp_path / "out"), "--check-only"]) == 1
    assert f"--model {name} does not exist" in capsys.readouterr().err


def test_check_only_names_what_would_be_trained_and_writes_nothing(tmp_path, capsys, monkeypatch):
    rows, corpus = files(tmp_path)
    model, out = tiny_bert(tmp_path / "model"), tmp_path / "out"
    words = ["--rows", str(rows), "--corpus", str(corpus), "--negatives", "2", "--model", str(model)]
    words += ["--out", str(out), "--check-only"]
    assert main([*words, "--batch-size", "12"]) == 0
    assert capsys.readouterr().out.startswith("all checks passed") and not out.exists()
    assert main([*words, "--batch-size", "13"]) == 1
    assert "--batch-size 12" in capsys.readouterr().err
    corpus_text = corpus.read_text()
    corpus.write_text("")
    assert main([*words, "--batch-size", "13"]) == 1
    assert "2 problems" in capsys.readouterr().err, "an empty corpus hides no batch that is too large"
    corpus.write_text(corpus_text)
    for content, message in (('{"id": "1"}\n', "line 1: "), ("", "no passage in it")):
        corpus.write_text(content)
        assert main([*words, "--batch-size", "12"]) == 1 and message in capsys.readouterr().err
    monkeypatch.setattr(command, "_check_start", Mock(side_effect=KeyboardInterrupt))
    assert main([*words, "--batch-size", "12"]) == 130
    assert "run the same command again to go on" in capsys.readouterr().err
