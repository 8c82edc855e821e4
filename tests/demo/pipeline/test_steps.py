"""The steps of a pipeline: which there are, on what they build, and what the commands are given."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from rag_r1.config.recipes import Recipe
from rag_r1.demo.pipeline import command
from rag_r1.demo.pipeline.arguments import STEP_NAMES, PipelineArguments
from rag_r1.demo.pipeline.limits import BUDGET, CONTEXT_TOKENS, TEACHER_BUDGET, grpo_overrides
from rag_r1.demo.pipeline.steps import Pipeline
from rag_r1.demo.policy import policy_path
from rag_r1.options.command_line import read_arguments
from rag_r1.runs.errors import RunError
from rag_r1.runs.processes import MARK
from rag_r1.runs.start_checks import StartError
from rag_r1.runs.steps import PipelineFolder, Step
from rag_r1.sft.data_arguments import SftDataArguments
from rag_r1.sft.filter_command import FilterArguments
from rag_r1.sft.progress import SftProgressBar
from rag_r1.sft.traces_command import TracesArguments
from rag_r1.sft.train_command import SftArguments
from rag_r1.training.composition import compose_recipe


def arguments(*words: str | Path) -> PipelineArguments:
    return read_arguments(PipelineArguments, ["--out", "x", *map(str, words)], description="")


def steps(out: Path, *words: str | Path) -> dict[str, dict]:
    """Name -> settings and what it builds on."""
    made = Pipeline(arguments(*words), out).steps()
    return {step.name: {"settings": dict(step.settings), "needs": step.needs} for step in made}


def test_every_step_builds_on_earlier_ones(tmp_path):
    made = steps(tmp_path)
    names = list(made)
    assert tuple(names) == STEP_NAMES
    for place, name in enumerate(names):
        assert set(made[name]["needs"]) <= set(names[:place])
    assert set(made["evaluation"]["needs"]) >= {"base", "sft", "grpo", "grpo_without_sft"}


def test_the_control_can_be_left_out_and_the_run_can_end_early(tmp_path):
    made = steps(tmp_path, "--without-sft", "no")
    assert "grpo_without_sft" not in made and "grpo_without_sft" not in made["evaluation"]["needs"]
    assert list(steps(tmp_path, "--until", "sft_data")) == ["world", "base", "traces", "sft_data"]


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (["--questions", "7"], {"world"}),
        (["--base", "scratch"], set()),
        (["--base-steps", "7"], {"base"}),
        (["--base", policy_path("rag_r1_mq")], {"base"}),
        (["--wrong", "0.5"], {"traces"}),
        (["--teacher-url", "http://x/v1", "--teacher-model", "m"], {"traces"}),
        (["--sft-epochs", "7"], {"sft"}),
        (["--sft-set", "optim.lr=1e-4"], {"sft"}),
        (["--filter-questions", "7"], {"filter"}),
        (["--grpo-steps", "7"], {"grpo", "grpo_without_sft"}),
        (["--timeout", "7"], set()),
    ],
)
def test_an_argument_changes_the_settings_of_the_step_that_it_is_for(tmp_path, words, changed):
    before, after = steps(tmp_path), steps(tmp_path, *words)
    assert {name for name in before if before[name] != after[name]} == changed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--teacher-url", "http://x/v1"], "--teacher-model"),
        (["--grpo-set", "lr"], "--grpo-set 'lr' is not key=value"),
        (["--base-steps", "1"], "at least 2"),
        (["--protocol", "r1_searcher"], "--protocol"),
    ],
)
def test_wrong_arguments_are_refused_by_name(words, message, capsys):
    with pytest.raises(SystemExit) as ended:
        arguments(*words)
    assert ended.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.slow
def test_a_base_that_is_not_there_is_named(tmp_path):
    args = PipelineArguments(out=tmp_path / "x", base="no/such/folder")
    with pytest.raises(StartError, match="--base no/such/folder: no policy in no/such/folder"):
        command.check_start(args)


@pytest.mark.slow
def test_changed_settings_of_a_step_are_told_beside_other_problems(tmp_path):
    world = Pipeline(arguments(), tmp_path).steps()[0]
    PipelineFolder(tmp_path).run(Step("world", world.settings, lambda folder: {}, ()))
    args = PipelineArguments(out=tmp_path, seed=1, held_out=1_000_000)
    with pytest.raises(StartError) as error:
        command.check_start(args)
    for problem in ("world.seed was 0 and is now 1", "--held-out: this world does not have"):
        assert problem in str(error.value)


@pytest.mark.slow
def test_more_questions_than_the_world_has_are_refused_before_the_first_step(tmp_path):
    args = PipelineArguments(out=tmp_path / "x", held_out=1_000_000)
    with pytest.raises(StartError, match="--held-out: this world does not have 1000000"):
        command.check_start(args)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["rag_r1_sq", "rag_r1_mq"])
def test_the_trainings_have_the_limits_of_the_other_steps_and_can_be_resumed(protocol):
    overrides = grpo_overrides(arguments("--protocol", protocol, "--grpo-set", "trainer.test_freq=3"))
    config = compose_recipe(Recipe.find("recipes/demo/grpo"), overrides)
    for name in ("max_turns", "max_turn_tokens", "max_query_observation_tokens"):
        assert config.rag_r1.agent[name] == getattr(BUDGET, name)
    rollout = config.actor_rollout_ref.rollout
    assert rollout.max_model_len == config.data.max_prompt_length + config.data.max_response_length
    assert config.trainer.resume_mode == "auto" and config.trainer.save_freq == 6
    assert "hf_model" in config.actor_rollout_ref.actor.checkpoint.save_contents
    assert config.trainer.test_freq == 3, "the user's overrides are the last ones"
    terms = [entry["term"] for entry in OmegaConf.to_container(config.rag_r1.reward)]
    assert terms == (["em", "turn_cost"] if protocol == "rag_r1_mq" else ["em"])
    assert config.rag_r1.protocol == protocol


@pytest.mark.parametrize(
    ("words", "teacher"), [([], "rules"), (["--teacher-url", "http://x/v1", "--teacher-model", "m"], "m")]
)
def test_the_commands_of_the_steps_have_the_limits_of_the_pipeline(tmp_path, monkeypatch, words, teacher):
    import rag_r1.inference.vllm_server as vllm
    from rag_r1.demo.pipeline import steps as module

    class Started(Exception):
        """The words of a command that is not started."""

    def start(*words: str, **unused: object) -> None:
        raise Started(*words)

    monkeypatch.setattr(module, "run_module", start)
    monkeypatch.setattr(module.Pipeline, "retriever", lambda self, folder: nullcontext("http://search"))
    monkeypatch.setattr(vllm, "vllm_server", lambda *_, **__: nullcontext("http://vllm/v1"))
    (tmp_path / "sft_data").mkdir()
    (tmp_path / "sft_data" / "sft_summary.json").write_text('{"splits": {"train": {"samples": 64}}}')
    commands = {
        "traces": ("rag_r1.sft.traces_command", TracesArguments),
        "sft_data": ("rag_r1.sft.data", SftDataArguments),
        "sft": ("rag_r1.sft.train_command", SftArguments),
        "filter": ("rag_r1.sft.filter_command", FilterArguments),
    }
    read = {}
    for step in Pipeline(arguments("--questions", "40", "--held-out", "8", *words), tmp_path).steps():
        if step.name in commands:
            with pytest.raises(Started) as started:
                step.work(tmp_path)
            name, declared = commands[step.name]
            assert started.value.args[0] == name
            read[step.name] = read_arguments(declared, started.value.args[1:], description="")
    assert read["traces"].teacher_model == teacher
    limits = TEACHER_BUDGET if words else BUDGET
    assert read["traces"].max_response_tokens == limits.max_response_tokens
    assert read["filter"].max_response_tokens == BUDGET.max_response_tokens
    assert (read["filter"].limit, read["filter"].validation) == (arguments().filter_questions, 0)
    assert read["filter"].retriever_url == "http://search" and read["filter"].base_url == "http://vllm/v1"
    assert read["sft_data"].max_target == BUDGET.max_turn_tokens
    assert (
        read["sft"].data == tmp_path / "sft_data"
        and f"data.max_length={CONTEXT_TOKENS}" in read["sft"].overrides
    )


@pytest.mark.parametrize("place", ["", "moved/"])
def test_the_model_of_a_training_is_found_also_in_a_folder_that_was_moved(tmp_path, place):
    pipeline = Pipeline(arguments(), tmp_path)
    stage = tmp_path / "grpo" / "stage1"
    model = stage / "checkpoints" / "global_step_3" / "actor" / "huggingface"
    model.mkdir(parents=True)
    with pytest.raises(RunError, match="finished"):
        pipeline.trained("grpo")
    (stage / "finished").write_text(f"/somewhere/{place}{model.relative_to(tmp_path)}\n")
    assert pipeline.trained("grpo") == model
    (stage / "finished").write_text("garbage\n")
    with pytest.raises(RunError, match="does not name a model"):
        pipeline.trained("grpo")


def test_the_bar_of_sft_shows_the_last_step_and_keeps_the_last_validation(tmp_path, monkeypatch):
    metrics = tmp_path / "metrics.jsonl"
    with SftProgressBar(metrics, 4) as bar:
        bar.read()  # no file yet
        # veRL writes null for a loss that is NaN.
        data = [(1, {"train/loss": None}), (2, {"train/loss": 2.0}), (2, {"val/loss": 2.5})]
        whole = "".join(json.dumps({"step": step, "data": entry}) + "\n" for step, entry in data)
        metrics.write_text(whole + '{"step": 3, "da')  # a line that is being written
        bar.read()
        assert bar.loss == 2.5 and bar.n == 2
        metrics.unlink()
        monkeypatch.setattr(Path, "exists", lambda path: True)  # it is removed right after a look at it
        bar.read()


@pytest.mark.slow
def test_the_first_step_is_made_once_and_a_change_of_it_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv(MARK, "")  # the command marks the processes that it starts
    small = ["--out", str(tmp_path / "out"), "--questions", "40", "--held-out", "8", "--until", "world"]
    assert command.main(small) == 0
    output = capsys.readouterr().out
    assert "1/1 world: done in" in output
    index = tmp_path / "out" / "world" / "index" / "manifest.json"
    made = index.stat().st_mtime_ns
    assert command.main(small) == 0
    assert "was done before" in capsys.readouterr().out and index.stat().st_mtime_ns == made
    assert command.main([*small, "--seed", "1"]) == 1
    assert "world.seed was 0 and is now 1" in capsys.readouterr().err
