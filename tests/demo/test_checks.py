"""`rag-r1 demo` and `rag-r1 pipeline` report all that is wrong before they start anything."""

from __future__ import annotations

import pytest

from rag_r1.demo import run
from rag_r1.demo.pipeline import command

pytestmark = pytest.mark.slow  # recipes are composed
KEYS = ("trainer.total_steps=1", "rag_r1.agent.max_turn=3", "~trainer.nothing", "data.sead=1")
COMMANDS = {
    "demo": (run.main, [*KEYS]),
    "pipeline": (command.main, [*(word for key in KEYS for word in ("--grpo-set", key))]),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_five_planted_problems_are_reported_in_one_run(name, tmp_path, capsys):
    main, words = COMMANDS[name]
    (tmp_path / "out").touch()
    assert main(["--out", str(tmp_path / "out"), *words]) == 1
    message = capsys.readouterr().err
    named = [f"{tmp_path}/out is a file", *(key.strip("~").partition("=")[0] for key in KEYS)]
    assert [name for name in named if name not in message] == [] and "5 problems" in message


@pytest.mark.parametrize("name", COMMANDS)
def test_wrong_values_and_unknown_keys_are_reported_before_the_training(name, tmp_path, capsys):
    main, before = COMMANDS[name][0], ["--grpo-set"] if name == "pipeline" else []
    keys = (
        "trainer.total_training_steps=-3",
        "actor_rollout_ref.actor.optim.lr=fast",
        "rag_r1.agent.max_turns=-2",
        "data.sead=1",
    )
    words = [word for key in keys for word in (*before, key)]
    assert main(["--out", str(tmp_path / "out"), *words, "--check-only"]) == 1
    message = capsys.readouterr().err
    assert [key for key in keys if key.partition("=")[0] not in message] == [] and "4 problems" in message


def test_a_word_that_is_no_override_is_reported_once_and_hides_no_other(tmp_path, capsys):
    words = ["--sft-set", "a", "--sft-set", "trainer.nosuch=1", "--grpo-set", "b", "--check-only"]
    with pytest.raises(SystemExit):
        command.main(["--out", str(tmp_path / "out"), *words])
    message = capsys.readouterr().err
    assert message.count("'a'") == message.count("'b'") == message.count("trainer.nosuch: ") == 1


def test_the_demo_refuses_other_values_of_the_keys_that_it_sets_itself(tmp_path, capsys):
    keys = ["actor_rollout_ref.model.path", "data.train_files", "+rag_r1.retriever.url"]
    assert run.main(["--out", str(tmp_path / "out"), *(f"{key}=x" for key in keys), "--check-only"]) == 1
    message = capsys.readouterr().err
    assert [key for key in keys if f"{key.strip('+')}: the demo sets" not in message] == []


def test_the_pipeline_refuses_a_key_that_its_stages_set_and_warns_of_single_answers(tmp_path, capsys):
    keys = ["trainer.default_local_dir", "actor_rollout_ref.rollout.n"]
    words = [word for key in keys for word in ("--grpo-set", f"{key}=1")]
    assert command.main(["--out", str(tmp_path / "out"), *words, "--check-only"]) == 1
    message = capsys.readouterr().err
    assert f"{keys[0]}: rag-r1 stages sets" in message and f"warning: {keys[1]}: is 1" in message


def test_a_folder_with_data_of_something_else_is_refused_and_an_earlier_run_is_named(tmp_path, capsys):
    (tmp_path / "data").mkdir()
    arguments = ["--out", str(tmp_path), "--check-only"]
    assert run.main(arguments) == 1
    assert f"--out {tmp_path} is no run of a demo" in capsys.readouterr().err
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "train.log").touch()
    assert run.main(arguments) == 0
    assert f"the earlier run in {tmp_path} is replaced" in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_check_only_says_what_would_run_and_writes_nothing(name, tmp_path, capsys):
    out = tmp_path / "out"
    assert COMMANDS[name][0](["--out", str(out), "--check-only"]) == 0
    assert capsys.readouterr().out.startswith("all checks passed") and not out.exists()


def test_a_dead_teacher_is_found_before_half_an_hour_of_pretraining(tmp_path, capsys):
    teacher = ["--teacher-url", "http://127.0.0.1:9/v1", "--teacher-model", "m"]
    assert command.main(["--out", str(tmp_path / "out"), *teacher]) == 1
    message = capsys.readouterr().err
    assert "no teacher answers at http://127.0.0.1:9" in message and "--teacher-url" in message


@pytest.mark.parametrize(
    ("words", "contents"),
    [
        ([], ["hf_model"]),
        (["actor_rollout_ref.model.lora_rank=8"], ["model"]),
        (["actor_rollout_ref.model.lora_rank=0"], ["hf_model"]),
        (["--recipe", "grpo_nf4"], []),
    ],
)
def test_the_policy_is_saved_as_what_an_evaluation_takes(words, contents, tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(run, "run_demo", lambda recipe, out, seed, changes, timeout: given.extend(changes))
    monkeypatch.setattr(run, "_print_results", lambda *args: None)
    monkeypatch.setattr(run, "_check_start", lambda args: tmp_path)
    assert run.main(words) == 0
    saved = [change.partition("=")[2] for change in given if "save_contents" in change]
    assert saved == [f"[{name}]" for name in contents]
