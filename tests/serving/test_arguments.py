"""The arguments of `rag-r1 serve` and `rag-r1 chat`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from rag_r1.demo.eval_arguments import demo_eval_arguments
from rag_r1.demo.policy import policy_path
from rag_r1.serving import command
from rag_r1.serving.arguments import ServeArguments, to_eval_arguments, with_demo_limits
from rag_r1.serving.terminal import command as terminal
from tests.fakes.json_server import JsonStub


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give --model"),
        (["--demo", "--model", "m"], "leave out --model"),
        (["--demo", "--documents", "."], "leave out --documents"),
        (["--demo", "--protocol", "search_r1", "--engine", "chat"], "leave out --engine, --protocol"),
        (["--model", "m", "--documents", ".", "--retriever-url", "http://x"], "leave out --retriever-url"),
        (["--model", "m", "--skip-bad-files"], "there is no --documents: leave out --skip-bad-files"),
        (["--model", "m", "--port", "99999"], "--port"),
        (["--model", "m", "--concurrency", "0"], "--in-flight"),
        (["--model", "m", "rag_r1.agent"], "is not key=value"),
        (["--demo", "--host", ""], "--host"),
        (["--demo", "--name", " "], "--name"),
        (["--demo", "--allowed-host", "chat.example.org:80"], "--allowed-host"),
        (["--model", "m", "--api-key-env", "the key"], "--api-key-env"),
    ],
)
def test_wrong_arguments_are_named(words, said, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_folder_of_documents_that_is_not_there_is_named_beside_other_problems(tmp_path, capsys):
    server = ["--model", "m", "--base-url", "http://127.0.0.1:9/v1", "--tokenizer", "./none"]
    (tmp_path / "file").touch()
    assert command.main([*server, "--documents", "no/such", "--out", str(tmp_path / "file")]) == 1
    message = capsys.readouterr().err
    assert "--documents no/such does not exist" in message and "file is a file" in message
    assert "./none" in message


def test_documents_are_read_by_check_only(tmp_path, capsys):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "latin.txt").write_bytes("Käse".encode("latin-1"))
    words = ["--engine", "chat", "--model", "m", "--documents", str(tmp_path / "notes")]
    words += ["--out", str(tmp_path / "out"), "--port", "0"]
    with JsonStub(lambda asked: {"data": [{"id": "m"}]}) as stub:
        assert command.main([*words, "--base-url", f"{stub.url}/v1", "--check-only"]) == 1
    assert "latin.txt" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("is_served_here", [True, False])
def test_the_tokenizer_is_checked_before_the_start(is_served_here, tmp_path, capsys):
    shutil.copytree(policy_path("rag_r1_mq"), tmp_path / "m", ignore=shutil.ignore_patterns("tokenizer*"))
    words = ["--model", str(tmp_path / "m"), "--out", str(tmp_path / "out"), "--port", "0", "--check-only"]
    with JsonStub(lambda asked: {"data": [{"id": str(tmp_path / "m")}]}) as stub:
        assert command.main(words if is_served_here else [*words, "--base-url", f"{stub.url}/v1"]) == 1
    assert f"{tmp_path}/m cannot be loaded" in capsys.readouterr().err


@pytest.mark.slow
def test_a_vocabulary_smaller_than_the_tokenizers_is_found_before_the_start(tmp_path, capsys):
    shutil.copytree(policy_path("rag_r1_mq"), tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps({**config, "vocab_size": 7}))
    weights = load_file(tmp_path / "m" / "model.safetensors")
    embedding = weights["model.embed_tokens.weight"][:7]
    save_file({**weights, "model.embed_tokens.weight": embedding}, tmp_path / "m" / "model.safetensors")
    assert command.main(["--model", str(tmp_path / "m"), "--out", str(tmp_path / "out"), "--check-only"]) == 1
    assert "vocab_size of 7" in capsys.readouterr().err


def test_a_missing_model_is_one_problem_beside_those_of_the_files(tmp_path, capsys):
    with pytest.raises(SystemExit):
        command.main(["--port", "abc", "--documents", "no/such", "--out", str(tmp_path)])
    message = capsys.readouterr().err
    assert "3 problems" in message and "give --model" in message and "--documents no/such" in message


@pytest.mark.parametrize("main", [command.main, terminal.main])
def test_a_wrong_token_and_all_wrong_keys_are_named_before_the_demo_starts(
    main, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("CHAT_TOKEN", "no token")
    keys = ["rag_r1.retriever.topk=x", "rag_r1.agent.paths=3", "trainer.x=1"]
    assert main(["--demo", "--out", str(tmp_path / "out"), "--check-only", *keys]) == 1
    message = capsys.readouterr().err
    assert [key for key in ["CHAT_TOKEN", *keys] if key.partition("=")[0] not in message] == []


def test_limits_within_which_no_prompt_fits_are_named_beside_other_problems(tmp_path, capsys):
    words = ["--model", "m", "--base-url", "http://127.0.0.1:9/v1", "--engine", "chat", "rag_r1.x=1"]
    assert command.main([*words, "--out", str(tmp_path / "out"), "--max-prompt-tokens", "1"]) == 1
    message = capsys.readouterr().err
    assert "--max-prompt-tokens" in message and "rag_r1.x" in message


def test_the_terminal_takes_a_server_or_an_agent(capsys):
    for words in ([], ["--url", "127.0.0.1:80"], ["--url", "http://x", "--demo"]):
        with pytest.raises(SystemExit):
            terminal.main(words)
    message = capsys.readouterr().err
    assert "--url names a server" in message and "retrieval server" not in message


@pytest.mark.parametrize("main", [command.main, terminal.main])
def test_the_help_teaches_with_examples(main, capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    message = capsys.readouterr().out
    assert "examples:" in message and "--demo" in message and "--documents" in message


def test_a_question_is_played_with_the_arguments_of_an_evaluation():
    args = ServeArguments(
        model="m", base_url="http://x/v1", protocol="search_r1", overrides=["rag_r1.retriever.topk=5"]
    )
    evaluation = to_eval_arguments(args)
    assert (evaluation.model, evaluation.base_url, evaluation.protocol) == ("m", "http://x/v1", "search_r1")
    assert evaluation.temperature == 0 and evaluation.overrides == ["rag_r1.retriever.topk=5"]


def test_the_demo_is_asked_within_the_limits_of_its_training_and_takes_overrides():
    args = ServeArguments(
        demo=True, overrides=["rag_r1.agent.max_turns=2"], vllm_options="--seed 1", in_flight=3
    )
    demo = demo_eval_arguments(Path("model"), Path("-"), "rag_r1_mq", "http://127.0.0.1:1", Path("out"))
    evaluation = with_demo_limits(args, demo, ("--max-num-seqs", "32"))
    assert evaluation.overrides[-1] == "rag_r1.agent.max_turns=2"
    assert "rag_r1.agent.max_turn_tokens=48" in evaluation.overrides
    assert evaluation.vllm_options == "--max-num-seqs 32 --seed 1" and evaluation.in_flight == 3
    assert args.max_history == 0 and ServeArguments(model="m").max_history == 4
    assert ServeArguments(demo=True, history=2).max_history == 2


def test_a_port_that_is_taken_is_known_before_anything_is_started(capsys):
    with command.bind_socket("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        assert command.main(["--demo", "--port", port]) == 1
    assert f"cannot listen on 127.0.0.1, port {port}" in capsys.readouterr().err
