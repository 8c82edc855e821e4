"""The checks before a command plays episodes: all problems at once, files before servers."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import pytest

from rag_r1.evaluation import command as evaluation
from rag_r1.inference.model_folders import is_hub_name, local_model
from rag_r1.options.out_folder import INDEX_FILE
from rag_r1.options.server_address import search_fault, server_fault
from rag_r1.retriever.data import command as retriever_data
from rag_r1.rollouts import checks, server_check
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import try_servers
from rag_r1.sft import filter_command, traces_command
from rag_r1.tools.retrieval import options as search_options
from tests.fakes.json_server import JsonStub
from tests.fakes.scripted_vllm import Policy
from tests.fakes.silent_server import HangingServer
from tests.fakes.web_page import WebPage

DEAD = "http://127.0.0.1:9"
#: The commands that play episodes, each with the flags of its model's server.
COMMANDS = {
    "eval": (evaluation.main, ["--model", "m", "--base-url", f"{DEAD}/v1"]),
    "traces": (traces_command.main, ["--teacher-model", "m", "--base-url", f"{DEAD}/v1"]),
    "filter": (filter_command.main, ["--model", "m", "--base-url", f"{DEAD}/v1"]),
    "retriever data": (retriever_data.main, ["--model", "m", "--base-url", f"{DEAD}/v1"]),
}


def test_an_error_that_no_separate_check_finds_is_reported_beside_the_others(tmp_path):
    args = evaluation.EvalArguments(model="m", questions=[tmp_path / "none.jsonl"], out=tmp_path / "out")
    with pytest.raises(RunError) as raised, checks.all_problems(args, {}):
        raise RunError("the template refuses the prompt: give another")
    assert raised.value.problems[1:] == ["the template refuses the prompt: give another"]


@pytest.mark.parametrize("name", COMMANDS)
def test_six_planted_problems_are_reported_in_one_run(name, tmp_path, capsys):
    main, server = COMMANDS[name]
    (tmp_path / "bad.jsonl").write_text('{"question": "Who?"}\n')
    status = main(
        [
            *server,
            *("--questions", str(tmp_path / "missing.parquet")),
            *("--questions", str(tmp_path / "bad.jsonl")),
            *("--protocol", "no_such_protocol"),
            *("--tokenizer", str(tmp_path / "no_tokenizer")),
            *("--term", "no_such_term"),
            *("--out", str(tmp_path / "out")),
            "rag_r1.agent.max_trns=3",
        ]
    )
    message = capsys.readouterr().err
    assert status == 1
    wanted = ("missing.parquet", "bad.jsonl", "no_such_protocol", "no_tokenizer", "--term: unknown")
    wanted += ("rag_r1.agent.max_trns",)
    assert [word for word in wanted if word not in message] == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["eval", "traces", "filter"])
def test_other_settings_than_those_of_the_run_are_reported_beside_files_and_servers(name, tmp_path, capsys):
    main, server = COMMANDS[name]
    settings = {"seed": 5, "protocol": "rag_r1_sq"}
    (tmp_path / "provenance.json").write_text(json.dumps({"settings": settings}))
    words = [*server, "--engine", "chat", "--questions", "none.jsonl", "--out", str(tmp_path), "--seed", "7"]
    assert main(words) == 1
    message = capsys.readouterr().err
    assert "seed was 5 and is now 7" in message and "protocol was 'rag_r1_sq'" in message
    assert "none.jsonl" in message and f"{DEAD}/v1" in message
    with pytest.raises(SystemExit):
        main([*words, "--none"])
    assert "seed was 5 and is now 7" in capsys.readouterr().err


def test_the_name_of_a_reward_is_no_unknown_term_and_a_tokenizer_of_the_hub_is_looked_for(tmp_path, capsys):
    main, server = COMMANDS["eval"]
    words = ["--questions", "none.jsonl", "--tokenizer", "no_such/tokenizer", "--out", str(tmp_path / "out")]
    assert main([*server, *words, "--term", "mine", "rag_r1.reward=[{term: em, name: mine}]"]) == 1
    message = capsys.readouterr().err
    assert "--tokenizer no_such/tokenizer" in message and "--term" not in message


@pytest.mark.parametrize("name", COMMANDS)
def test_a_folder_that_cannot_be_made_hides_no_other_problem(name, tmp_path, capsys):
    main, server = COMMANDS[name]
    (tmp_path / "file").touch()
    questions = ["--questions", str(tmp_path / "missing.parquet"), "--engine", "chat"]
    keys = ["rag_r1.agent.max_turns=-1", "rag_r1.retriever.topk=many"]
    assert main([*server, *questions, "--out", str(tmp_path / "file"), *keys]) == 1
    said = capsys.readouterr()
    wanted = ("--out", "missing.parquet", "rag_r1.agent.max_turns", "rag_r1.retriever.topk", f"{DEAD}/v1")
    assert [word for word in wanted if word not in said.err] == [] and said.out == ""
    assert [*tmp_path.iterdir()] == [tmp_path / "file"]


@pytest.mark.parametrize(
    ("name", "flags", "named"),
    [
        ("eval", ["--serve-index", "none"], "--serve-index none has no manifest.json"),
        (
            "retriever data",
            ["--trajectories", "none"],
            "--trajectories none has no trajectories/records.jsonl",
        ),
    ],
)
def test_a_folder_of_other_work_is_looked_at_before_anything_is_written(name, flags, named, tmp_path, capsys):
    main, _ = COMMANDS[name]
    (tmp_path / "q.jsonl").write_text(json.dumps({"question": "Who?", "golden_answers": ["she"]}))
    with Policy(None, {}, lambda *unused: True) as policy:
        server = ["--model", "m", "--base-url", f"{policy.url}/v1"]
        server += [] if "--serve-index" in flags else ["--retriever-url", policy.url]
        words = ["--questions", str(tmp_path / "q.jsonl"), "--engine", "chat", "--out", str(tmp_path / "out")]
        assert main([*server, *words, *flags]) == 1
    assert named in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["eval", "traces", "filter"])
@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--max-prompt-tokens", "5"], ["every question is too long", "--max-prompt-tokens"]),
        (["--retriever-url", DEAD, f"rag_r1.retriever.url={DEAD}"], ["--retriever-url", "retriever.url are"]),
    ],
)
def test_limits_that_no_question_meets_and_settings_given_twice_are_refused(
    name, flags, named, tmp_path, capsys
):
    main, (model_flag, *_) = COMMANDS[name]
    (tmp_path / "q.jsonl").write_text(json.dumps({"question": "Who?", "golden_answers": ["she"]}))
    with Policy(None, {}, lambda *unused: True) as policy:
        server = [model_flag, "m", "--base-url", f"{policy.url}/v1", "--engine", "chat"]
        server += [] if "--retriever-url" in flags else ["--retriever-url", policy.url]
        words = [*server, "--questions", str(tmp_path / "q.jsonl"), "--out", str(tmp_path / "out"), *flags]
        with suppress(SystemExit):
            assert main(words) == 1
    said = capsys.readouterr().err
    assert [word for word in named if word not in said] == [] and not (tmp_path / "out").exists()


def test_greedy_samples_of_a_teacher_are_refused_as_those_of_an_evaluation(tmp_path):
    words = {"questions": [tmp_path / "q"], "out": tmp_path, "base_url": DEAD, "teacher_model": "m"}
    traces_command.TracesArguments(**words, samples=4)
    with pytest.raises(ValueError, match="--temperature"):
        traces_command.TracesArguments(**words, samples=4, temperature=0)


def test_a_wrong_term_hides_no_file_about_other_questions(tmp_path, capsys):
    main, server = COMMANDS["eval"]
    (tmp_path / "q.jsonl").write_text(json.dumps({"question": "Who?", "golden_answers": ["she"]}))
    (tmp_path / "others.json").write_text('["other"]')
    words = ["--questions", str(tmp_path / "q.jsonl"), "--answerable", str(tmp_path / "others.json")]
    assert main([*server, *words, "--engine", "chat", "--term", "nope", "--out", str(tmp_path / "o")]) == 1
    said = capsys.readouterr().err
    assert "'nope'" in said and "others.json names none of the run's questions" in said


@pytest.mark.parametrize("name", COMMANDS)
def test_two_dead_servers_are_named_with_the_commands_that_start_them(name, tmp_path, capsys):
    main, server = COMMANDS[name]
    questions = tmp_path / "questions.jsonl"
    questions.write_text(json.dumps({"question": "Who?", "golden_answers": ["she"]}))
    common = ["--questions", str(questions), "--engine", "chat", "--out", str(tmp_path / "out")]
    assert (
        main([*server, *common, "--retriever-url", DEAD, "--check-only", "rag_r1.retriever.retries=0"]) == 1
    )
    message = capsys.readouterr().err
    assert f"retrieval server answers at {DEAD}" in message and "rag-r1 index serve" in message
    assert f"no model server answers at {DEAD}/v1" in message and "vllm serve" in message


@pytest.mark.parametrize("name", ["eval", "traces", "filter"])
@pytest.mark.parametrize(
    ("key", "asks"),
    [
        ("agent.max_trns=3", True),
        ("retriever.topk=many", True),
        ("validation_retriever.topk=many", True),
        ("retriever.wire=none", False),
        ("validation_retriever.wire=none", False),
    ],
)
def test_a_wrong_key_hides_no_dead_search_unless_it_says_how_to_search(name, key, asks, tmp_path, capsys):
    main, server = COMMANDS[name]
    (tmp_path / "questions.jsonl").write_text(json.dumps({"question": "Who?", "golden_answers": ["she"]}))
    questions = str(tmp_path / "questions.jsonl")
    words = ["--questions", questions, "--engine", "chat", "--out", str(tmp_path / "o")]
    assert main([*server, *words, "--retriever-url", DEAD, f"rag_r1.{key}"]) == 1
    said = capsys.readouterr().err
    assert f"rag_r1.{key.partition('=')[0]}" in said and f"no model server answers at {DEAD}/v1" in said
    assert (f"retrieval server answers at {DEAD} " in said) == asks


@pytest.mark.parametrize("name", COMMANDS)
def test_a_dead_search_that_a_key_names_is_not_taken_for_that_of_the_flag(name, tmp_path, capsys):
    main, server = COMMANDS[name]
    (tmp_path / "q.jsonl").write_text(json.dumps({"question": "Who?", "golden_answers": ["she"]}))
    words = ["--questions", str(tmp_path / "q.jsonl"), "--engine", "chat", "--out", str(tmp_path / "o")]
    assert main([*server, *words, f"rag_r1.retriever.url={DEAD}9"]) == 1
    said = capsys.readouterr().err
    assert f"retrieval server answers at {DEAD}9 " in said and "correct rag_r1.retriever.url" in said
    assert "--retriever-url" not in said


def test_a_dead_judge_of_retriever_data_hides_no_missing_tokenizer(tmp_path, capsys):
    main, server = COMMANDS["retriever data"]
    judge = ["--judge-url", f"{DEAD}9/v1", "--judge-model", "j"]
    assert main([*server, *judge, "--questions", __file__, "--out", str(tmp_path / "o")]) == 1
    message = capsys.readouterr().err
    assert f"no judge answers at {DEAD}9/v1" in message
    assert "tokenizer of --model m cannot be loaded" in message


def test_several_greedy_paths_are_named_beside_another_wrong_key(tmp_path, capsys):
    main, server = COMMANDS["eval"]
    keys = ["rag_r1.agent.paths=3", "rag_r1.agnt=1"]
    assert main([*server, "--questions", __file__, "--out", str(tmp_path / "out"), *keys]) == 1
    message = capsys.readouterr().err
    assert "rag_r1.agent.paths" in message and "rag_r1.agnt" in message


@pytest.mark.parametrize("name", COMMANDS)
def test_web_pages_in_place_of_both_servers_are_named(name, tmp_path, capsys):
    main, server = COMMANDS[name]
    (tmp_path / "questions.jsonl").write_text(json.dumps({"question": "Who?", "golden_answers": ["she"]}))
    with WebPage() as page:
        words = [page.url + "/v1" if word == f"{DEAD}/v1" else word for word in server]
        words += ["--questions", str(tmp_path / "questions.jsonl"), "--engine", "chat"]
        words += ["--retriever-url", page.url, "--check-only", "--out", str(tmp_path / "out")]
        assert main(words) == 1
    message = capsys.readouterr().err
    assert (
        f"{page.url}/v1 answers with a web page" in message
        and f"the search at {page.url} does not" in message
    )


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("check_only", [[], ["--check-only"]])
def test_two_servers_that_hang_are_asked_once_each_and_both_named(
    name, check_only, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(server_check, "TIMEOUT_S", 0.3)
    monkeypatch.setattr(search_options, "FIRST_ANSWER_S", 0.3)
    main, server = COMMANDS[name]
    (tmp_path / "questions.jsonl").write_text(json.dumps({"question": "Who?", "golden_answers": ["she"]}))
    with HangingServer() as model, HangingServer() as search:
        words = [model.url + "/v1" if word == f"{DEAD}/v1" else word for word in server]
        words += ["--questions", str(tmp_path / "questions.jsonl"), "--engine", "chat"]
        words += ["--retriever-url", search.url, "--out", str(tmp_path / "out"), *check_only]
        assert main(words) == 1
    assert (model.asked, search.asked) == (["/v1/models"], ["/retrieve"])
    message = capsys.readouterr().err
    assert f"no model server answers at {model.url}/v1" in message
    assert f"the search at {search.url} does not work (no answer within" in message


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("check_only", [[], ["--check-only"]])
def test_an_index_or_the_folder_of_another_command_is_no_place_for_a_run(name, check_only, tmp_path, capsys):
    main, server = COMMANDS[name]
    (tmp_path / "settings.yaml").write_text("# rag-r1 documents @x --out OTHER\n")
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / INDEX_FILE).touch()
    for out, owner in ((tmp_path, "`rag-r1 documents`"), (tmp_path / "index", "is an index")):
        files = {*out.iterdir()}
        flags = ["--questions", __file__, "--engine", "chat", "--out", str(out)]
        assert main([*server, *check_only, *flags]) == 1
        message = capsys.readouterr().err
        assert f"--out {out}" in message and owner in message and {*out.iterdir()} == files


def both_servers(models, completion):
    """What a search and a model's server at one address answer."""

    def answer(asked):
        if asked.path == "/retrieve":
            return {"result": [[{"document": {"id": "1", "contents": "Ulm"}, "score": 1.0}]]}
        return models if asked.method == "GET" else completion

    return answer


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    ("models", "completion", "said"),
    [
        ((404, "<html>"), (501, "<html>Unsupported method"), "answers with HTTP 501: <html>Unsupported"),
        ({"data": [{"id": "m"}]}, (401, "{}"), "(HTTP 401): set $OPENAI_API_KEY to its key"),
        ({"data": [{"id": "other"}]}, {}, "has no model 'm', but other: correct FLAG"),
    ],
)
def test_a_server_that_will_never_answer_is_named_before_the_work(
    name, models, completion, said, tmp_path, capsys
):
    """A web server of another kind, a list of models that needs no key, and a model that is not there."""
    main, server = COMMANDS[name]
    (tmp_path / "questions.jsonl").write_text(json.dumps({"question": "Who?", "golden_answers": ["she"]}))
    with JsonStub(both_servers(models, completion)) as stub:
        words = [f"{stub.url}/v1" if word == f"{DEAD}/v1" else word for word in server]
        words += ["--questions", str(tmp_path / "questions.jsonl"), "--engine", "chat"]
        assert main([*words, "--retriever-url", stub.url, "--out", str(tmp_path / "out")]) == 1
        assert sum("completions" in asked.path for asked in stub.asked) <= 1
    assert said.replace("FLAG", server[0]) in capsys.readouterr().err


def test_check_only_asks_each_server_once_and_writes_nothing(tmp_path, capsys):
    questions = tmp_path / "questions.jsonl"
    questions.write_text(json.dumps({"question": "Who?", "golden_answers": ["she"]}))
    with JsonStub(both_servers({"data": [{"id": "m"}]}, {})) as stub:
        flags = ["--model", "m", "--base-url", f"{stub.url}/v1", "--retriever-url", stub.url]
        common = ["--questions", str(questions), "--engine", "chat", "--out", str(tmp_path / "out")]
        assert evaluation.main([*flags, *common, "--check-only"]) == 0
        paths = sorted({asked.path for asked in stub.asked})
        modes = ["modes", "--trained", "m", "--prompt-alone", "none.txt", *flags, *common, "--check-only"]
        assert evaluation.main(modes) == 1
    assert paths == ["/retrieve", "/v1/chat/completions", "/v1/models"]
    printed = capsys.readouterr()
    assert "all checks passed: 1 questions" in printed.out and "--prompt-alone none.txt" in printed.err
    assert evaluation.main([*modes, "--questions", "none.jsonl"]) == 1
    printed = capsys.readouterr()
    assert "--prompt-alone none.txt" in printed.err and "none.jsonl" in printed.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("subcommand", [[], ["groups"], ["modes", "--trained", "m"]])
def test_a_dead_judge_and_a_dead_model_server_are_both_named(subcommand, tmp_path, capsys):
    main, server = COMMANDS["eval"]
    judge = ["--judge-url", f"{DEAD}9/v1", "--judge-model", "j"]
    flags = ["--questions", __file__, "--engine", "chat", "--out", str(tmp_path / "o")]
    assert main([*subcommand, *server, *flags, *judge]) == 1
    message = capsys.readouterr().err
    assert f"no judge answers at {DEAD}9/v1" in message and f"no model server answers at {DEAD}/v1" in message


@pytest.mark.parametrize(
    "words", [["--serve-index"], ["groups", "--index"], ["modes", "--trained", "m", "--index"]]
)
def test_a_missing_index_hides_no_missing_questions(words, tmp_path, capsys):
    main, server = COMMANDS["eval"]
    flags = ["--questions", "none.parquet", "--engine", "chat", "--out", str(tmp_path / "o")]
    assert main([*words, "no_index", *server, *flags]) == 1
    message = capsys.readouterr().err
    assert "none.parquet: there is no such file" in message and "no_index" in message


def test_a_run_that_is_not_there_is_said_so(capsys):
    assert evaluation.main(["compare", "no_run", "no_run_either"]) == 1
    assert "there is no run in no_run, no_run_either" in capsys.readouterr().err


def test_all_servers_are_tried_and_other_errors_pass():
    async def fails(text: str) -> None:
        raise RunError(text)

    async def answers() -> str:
        return "yes"

    assert asyncio.run(try_servers(answers(), answers())) == ["yes", "yes"]
    with pytest.raises(RunError, match="(?s)2 problems:.*- one.*- two"):
        asyncio.run(try_servers(fails("one"), answers(), fails("two")))
    with pytest.raises(RunError, match="^one$"):
        asyncio.run(try_servers(fails("one"), answers()))
    with pytest.raises(ZeroDivisionError):
        asyncio.run(try_servers(answers(), asyncio.sleep(0.01), divide()))


async def divide() -> float:
    return 1 / 0


def test_a_server_that_does_not_answer_is_one_sentence_with_address_start_command_and_flag():
    refused = "Cannot connect to host h:81 [Connect call failed ('h', 81)]"
    fault = server_fault("search", "http://h:81", refused, "serve --port {port}", "--url")
    expected = "no search answers at http://h:81 (connection refused): start one with `serve --port 81`, or "
    assert fault == f"{expected}correct --url"


@pytest.mark.parametrize(
    "name, is_name",
    [("Qwen/Qwen2.5-7B", True), ("models/qwen/7b", False), ("qwen", False), ("../a/b", False)],
)
def test_names_of_the_hub_are_known_by_their_form(name, is_name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert is_hub_name(name) == is_name
    Path(name).mkdir(parents=True)
    assert not is_hub_name(name) and local_model(name) == Path(name)
    assert local_model("~/models") == Path.home() / "models"


def test_a_model_of_the_hub_comes_from_its_cache_and_a_missing_one_is_named(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    repository = tmp_path / "models--our--model"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    assert local_model("our/model") == snapshot
    with pytest.raises(RunError, match="other/model is not a folder here, and the Hub does not give it"):
        local_model("other/model")


def test_a_search_that_does_not_work_is_named_with_its_address_the_token_and_the_flag():
    assert search_fault(DEAD, "HTTP 401", "--retriever-url") == (
        f"the search at {DEAD} does not work (HTTP 401): set RETRIEVAL_TOKEN, or correct --retriever-url"
    )
    page = search_fault(DEAD, "JSONDecodeError: Expecting value", "--retriever-url")
    assert "does not answer with JSON" in page and "JSONDecodeError" not in page


def test_the_check_of_a_model_server_sends_the_key(tmp_path, capsys, monkeypatch):
    """A server that answers only to its key passes with it, and names its variable without it."""

    def answer(asked):
        if asked.path.endswith("/models"):
            is_known = asked.headers.get("Authorization") == "Bearer right"
            return {"data": [{"id": "m"}]} if is_known else (401, "{}")
        return {"result": [[{"document": {"id": "1", "contents": "Ulm"}, "score": 1.0}]]}

    (tmp_path / "questions.jsonl").write_text(json.dumps({"question": "Who?", "golden_answers": ["she"]}))
    with JsonStub(answer) as stub:
        words = f"--teacher-model m --base-url {stub.url}/v1 --retriever-url {stub.url} --check-only".split()
        words += ["--questions", str(tmp_path / "questions.jsonl"), "--out", str(tmp_path / "out")]
        monkeypatch.setenv("MY_KEY", "right")
        assert traces_command.main([*words, "--api-key-env", "MY_KEY"]) == 0
        monkeypatch.setenv("MY_KEY", "wrong")
        assert traces_command.main([*words, "--api-key-env", "MY_KEY"]) == 1
    assert "set $MY_KEY" in capsys.readouterr().err
