"""All that is wrong with a loop is told at once, by its key, before anything is started."""

from __future__ import annotations

import os
import shlex
import shutil

import pytest

from rag_r1.iterate.plan import PlanError, read_plan
from rag_r1.iterate.server import UNKNOWN_URL
from rag_r1.training.stages import check_stage_overrides


def problems(loop, capsys) -> list[str]:
    """What the command says against the loop, without starting anything."""
    assert loop.run() == 1
    assert not loop.out.exists()
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == f"{len(lines) - 1} error(s): nothing was started"
    return [line.removeprefix(f"error: {loop.recipe}: ") for line in lines[:-1]]


def assert_begin(messages: list[str], starts: list[str]) -> None:
    assert [line[: len(start)] for line, start in zip(messages, starts, strict=True)] == starts


@pytest.mark.slow  # the retrieval server's program is started
def test_what_the_build_of_the_index_would_refuse_is_told_before_the_first_step(loop, capsys):
    del loop.plan["retriever"]["python"]
    loop.plan["retriever"]["options"] = {"model": "minilm"}
    loop.plan["index"]["options"] = {"preset": "smal"}
    [first, *_] = problems(loop, capsys)
    assert first.startswith("index.options: ") and "--preset" in first and "smal" in first


def test_wrong_keys_and_values_of_all_sections_are_told_together(loop, capsys):
    loop.plan["agent"] |= {"modle": "x", "start": "last", "overrides": "a=1"}
    loop.plan["retriever"]["processes"] = 0
    del loop.plan["index"]["first"]
    loop.plan["evaluation"] = ["questions"]
    loop.plan["sever"] = {}
    messages = problems(loop, capsys)
    assert messages == [
        "unknown section sever: use agent, data, retriever, index, server, evaluation",
        "unknown key agent.modle: use one of model, recipe, overrides, start, protocol, keys, launcher, "
        "python; did you mean model?",
        "agent.overrides must be a list of texts, not 'a=1'",
        "agent.start must be base or previous, not 'last'",
        "retriever.processes must be a whole number of at least 1, not 0",
        "index.first must be given: a text",
        "evaluation must be a mapping, not ['questions']",
    ]


def test_what_the_commands_would_refuse_is_told_together(loop, capsys):
    loop.plan["agent"]["keys"] = ["rag_r1.agent.max_turn=3"]
    loop.plan["data"]["options"] = {"candidates": 0, "model": "x"}
    loop.plan["retriever"]["options"] = {"learning_speed": 1}
    loop.plan["evaluation"]["options"] = {"samples": 2}
    expected = [
        "data.options.model: the loop sets it: leave it out",
        "agent.protocol, agent.keys or options.prompt: unknown key rag_r1.agent.max_turn",
        "evaluation.options: --samples above 1 needs",
        "data.options: argument --candidates: must be a whole number",
        "retriever.recipe or retriever.options: unrecognized arguments: --learning-speed",
    ]
    assert_begin(problems(loop, capsys), expected)
    loop.plan["evaluation"]["options"] = {}
    del expected[2]
    assert_begin(problems(loop, capsys), expected)


def test_a_prompt_of_the_training_data_that_is_not_there_is_told_and_a_wrong_key_once(loop, capsys):
    loop.plan["data"]["options"] = {"prompt": "none.txt"}
    (message,) = problems(loop, capsys)
    assert message.startswith("agent.protocol, agent.keys or options.prompt: ") and "none.txt" in message
    loop.plan["data"]["options"] = {}
    loop.plan["agent"]["keys"] = ["rag_r1.agent.max_turn=3"]
    assert len(problems(loop, capsys)) == 1
    loop.plan["agent"]["keys"] = ["rag_r1.retriever.topk=0", "rag_r1.agent.max_turns=x"]
    assert len(problems(loop, capsys)) == 2


@pytest.mark.slow  # composes the recipe
def test_wrong_keys_of_the_training_and_the_folder_are_told_with_the_rest(loop, capsys):
    loop.plan["agent"]["overrides"] = ["trainer.total_steps=1", "~critic.nothing", "data.seed={round}"]
    loop.plan["index"]["first"] = "no-index"
    loop.out.touch()
    assert loop.run() == 1
    lines = capsys.readouterr().err.splitlines()
    named = ["out is a file", "no-index", "agent.overrides: trainer.total_steps", "critic.nothing"]
    assert len(lines) == 5 and [name for name in named if name not in "".join(lines)] == []


def test_check_only_asks_the_server(loop, capsys):
    loop.plan["server"]["url"] = "http://127.0.0.1:9"
    assert loop.run("--check-only") == 1
    message = capsys.readouterr().err
    assert "http://127.0.0.1:9" in message and "server.url" in message


def test_a_model_without_a_tokenizer_and_a_threshold_that_no_value_reaches_are_told(loop, capsys):
    for file in (loop.folder / "model").glob("*token*"):
        file.unlink()
    loop.plan["evaluation"]["options"] = {"right_from": 3}
    tokenizer, threshold = problems(loop, capsys)
    assert tokenizer.startswith("agent.model: the tokenizer of ") and "holds no tokenizer" in tokenizer
    assert threshold.startswith("evaluation.options: --right-from 3: em has values from 0 to 1")


def test_a_wrong_key_hides_neither_files_nor_the_server(loop, capsys):
    loop.plan["retriever"]["recip"] = "x"
    loop.plan["server"]["url"] = "http://127.0.0.1:9"
    (loop.folder / "test.jsonl").unlink()
    (loop.folder / "model" / "model.safetensors").unlink()
    assert loop.run("--check-only") == 1
    message = capsys.readouterr().err
    named = ["retriever.recip", "evaluation.questions", "agent.model", "http://127.0.0.1:9", "4 error(s)"]
    assert [name for name in named if name not in message] == []


def test_files_that_are_not_there_are_told_together(loop, capsys):
    for name in ("train.jsonl", "test.jsonl", "corpus.jsonl", "first/manifest.json"):
        (loop.folder / name).unlink()
    shutil.rmtree(loop.folder / "model")
    loop.plan["agent"]["recipe"] = "recipes/none"
    loop.plan["retriever"]["recipe"] = "none.yaml"
    messages = problems(loop, capsys)
    keys = ["evaluation.questions", "data.questions", "index.corpus", "index.first", "agent.model"]
    assert [line.partition(":")[0] for line in messages] == [*keys, "agent.recipe", "retriever.recipe"]


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("agent", "overrides", ["rag_r1.retriever.url=x"], "agent.overrides: rag_r1.retriever.url is set by"),
        ("agent", "overrides", ["~trainer.resume_mode"], "agent.overrides: ~trainer.resume_mode is set by"),
        ("agent", "overrides", ["trainer"], "agent.overrides: trainer is not key=value"),
        ("agent", "keys", ["~rag_r1.agent"], "agent.keys: ~rag_r1.agent is not key=value"),
        (
            "agent",
            "keys",
            ["trainer.total_epochs=1"],
            "agent.keys: trainer.total_epochs is not a key of rag_r1",
        ),
        ("evaluation", "options", {"base_url": "x"}, "evaluation.options.base_url: the agent is trained"),
        ("data", "options", {"base-url": "x"}, "data.options.base-url: the agent is trained"),
        ("index", "options", {"encoder": "x"}, "index.options.encoder: the loop sets it"),
        ("index", "options", {"check-only": True}, "index.options.check-only: the loop sets it"),
        ("retriever", "options", {"check_only": True}, "retriever.options.check_only: the loop sets it"),
        ("evaluation", "options", {"check_only": True}, "evaluation.options.check_only: the loop sets it"),
        ("index", "corpus", [], "index.corpus must be given"),
        ("server", "options", ["--device", "cpu"], "server.options are for a server that the loop starts"),
    ],
)
def test_what_the_loop_sets_itself_cannot_be_set(loop, capsys, section, key, value, message):
    loop.plan[section][key] = value
    assert [line for line in problems(loop, capsys) if line.startswith(message)]


@pytest.mark.parametrize(
    ("absent", "message"),
    [
        (("data",), "data and retriever are given together"),
        (("data", "retriever"), "agent.start must be previous"),
        (("recipe", "data", "retriever"), "there is nothing to train"),
    ],
)
def test_a_loop_that_trains_nothing_or_half_is_refused(loop, capsys, absent, message):
    for name in absent:
        (loop.plan["agent"] if name == "recipe" else loop.plan).pop(name)
    assert any(message in line for line in problems(loop, capsys))


@pytest.mark.parametrize("text", ["[", "- a", "agent: {model: \0}"])
def test_a_recipe_that_is_no_mapping_is_named(tmp_path, text):
    (tmp_path / "loop.yaml").write_text(text)
    with pytest.raises(PlanError, match="loop.yaml"):
        read_plan(tmp_path / "loop.yaml")


def test_words_on_the_command_line_change_a_key_of_the_recipe(loop, capsys):
    loop.words()
    plan = read_plan(loop.recipe, ["agent.start=previous", "data.options.candidates=7", "server.url=null"])
    assert (plan.agent.start, plan.data.options["candidates"], plan.server.url) == ("previous", 7, None)
    for wrong in ("model=x", "agent.model.name=x", "agent.model=[", "agent.modle=x"):
        with pytest.raises(PlanError, match=wrong.partition("=")[0].partition(".")[0]):
            read_plan(loop.recipe, [wrong])


@pytest.mark.slow  # composes the recipe
def test_a_deletion_reaches_the_training_and_deletes_a_key_of_the_recipe(loop, capsys):
    loop.plan["agent"] |= {"overrides": ["~critic.ppo_epochs"], "keys": ["rag_r1.agent.max_turns=3"]}
    assert loop.run("--check-only", "--rounds", "1", "~agent.keys", "~data.options") == 0
    commands = [shlex.split(line) for line in capsys.readouterr().out.splitlines() if line[:2] == "  "]
    training = next(words for words in commands if "stages" in words)
    assert "~critic.ppo_epochs" in training and "rag_r1.agent.max_turns=3" not in training
    assert not any("--candidates" in words for words in commands)
    check_stage_overrides(["~critic.ppo_epochs", "stage1:~critic.ppo_epochs"], 1)
    for wrong in ("~agent.modle", "~agent.keys=1"):
        with pytest.raises(PlanError, match=wrong):
            read_plan(loop.recipe, [wrong])


def test_a_dry_run_prints_the_steps_and_their_commands_and_writes_nothing(loop, server, capsys):
    assert loop.run("--dry-run", "--rounds", "1") == 0
    messages = capsys.readouterr().out.splitlines()
    assert not loop.out.exists() and not server.orders
    assert [line for line in messages if not line.startswith(" ")][0] == "1/10 start/evaluation"
    commands = [shlex.split(line) for line in messages if line.startswith("  ")]
    assert len(commands) == 10 and [words for words in commands if words[0] == "POST"]
    python = loop.plan["agent"]["python"]
    assert all(words[:2] == [python, "-m"] for words in commands if words[0] != "POST")
    assert f"{loop.out}/round1/retriever/run/model" in next(w for w in commands if "--encoder" in w)


def test_a_dry_run_without_a_server_prints_commands_that_take_their_address(loop, capsys):
    loop.plan["server"] = {}
    assert loop.run("--dry-run", "--rounds", "1") == 0
    assert UNKNOWN_URL in capsys.readouterr().out


@pytest.mark.slow
def test_a_dry_run_of_a_loop_that_has_begun_says_what_is_done(loop, monkeypatch, capsys):
    monkeypatch.setitem(os.environ, "STUB_FAIL", "round1/agent_evaluation")
    assert loop.run("--rounds", "1") == 1
    capsys.readouterr()
    assert loop.run("--dry-run", "--rounds", "1") == 0
    messages = [line for line in capsys.readouterr().out.splitlines() if line.endswith("(done)")]
    assert messages == ["1/10 start/evaluation (done)", "2/10 round1/agent (done)"]


def test_the_help_teaches(capsys):
    from rag_r1.iterate.command import main

    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0 and "example:" in text and "--check-only" in text
    assert "rag-r1 recipes show agentic_r/iterate" in text


def test_a_wrong_section_for_the_server_does_not_hide_missing_files(loop, capsys):
    loop.plan["server"] = ["url"]
    (loop.folder / "test.jsonl").unlink()
    assert [line.partition(" ")[0] for line in problems(loop, capsys)] == ["server", "evaluation.questions:"]


def test_a_required_section_of_a_wrong_form_hides_no_problem_of_the_others(loop, capsys):
    loop.plan["agent"], loop.plan["evaluation"] = "models/7b", ["questions"]
    loop.plan["data"]["options"] = {"candidates": 0}
    for name in ("train.jsonl", "first/manifest.json"):
        (loop.folder / name).unlink()
    starts = ["agent must be", "evaluation must be", "data.questions:", "index.first:", "data.options: argum"]
    assert_begin(problems(loop, capsys), starts)


def test_files_of_another_form_are_named_before_the_first_step(loop, capsys):
    (loop.folder / "train.jsonl").write_bytes("{}".encode("utf-16"))
    (loop.folder / "test.jsonl").write_text('{"query": "Who?"}')
    (loop.folder / "corpus.jsonl").write_text('{"question": "Who?"}')
    messages = problems(loop, capsys)
    keys = ["evaluation.questions", "data.questions", "index.corpus"]
    assert [line.partition(":")[0] for line in messages] == keys


def test_a_wrong_key_hides_no_other_problem_of_its_section(loop, capsys):
    loop.plan["agent"] |= {"start": "bse", "model": "nowhere", "recipe": "no/such", "protocol": "nope"}
    loop.plan["retriever"] |= {"querry": "x", "recipe": "no/such"}
    loop.plan["evaluation"] |= {"questions": 3, "options": {"samples": 2}}
    loop.plan["server"]["options"] = ["--device", "cpu"]
    starts = [
        "agent.start must be",
        "unknown key retriever.querry",
        "evaluation.questions must be",
        "server.options are for a server",
        "agent.model: nowhere is not",
        "agent.recipe: there is no recipe",
        "agent.protocol, agent.keys or options.prompt:",
        "evaluation.options: --samples",
        "retriever.recipe: there is no recipe",
    ]
    messages = problems(loop, capsys)
    assert [next((start for start in starts if start in line), line) for line in messages] == starts
