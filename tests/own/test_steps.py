"""The steps: on what they build, which settings they have, and what is passed to commands and trainings."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from rag_r1.own import training_steps
from rag_r1.own.artifacts import STEP_NAMES, OwnArtifacts
from rag_r1.own.command import steps_until
from rag_r1.own.data_steps import traces_arguments
from rag_r1.own.evaluation_steps import eval_arguments, evaluations
from rag_r1.own.plan_file import read_plan
from rag_r1.own.sizes import with_recipes
from rag_r1.own.training_steps import batch_that_fits, filter_arguments, grpo_overrides, sft_overrides
from rag_r1.runs.errors import RunError
from rag_r1.runs.steps import PipelineFolder
from rag_r1.training.composition import compose_recipe
from tests.own.conftest import MODEL, PROMPT_FILE, Own

pytestmark = pytest.mark.slow
URL = "http://127.0.0.1:8000"
MODELS = ("untrained", "one_shot", "fine_tuned", "trained")
LIMITS = (("agent", "max_turns"), ("agent", "max_query_observation_tokens"), ("retriever", "topk"))


def artifacts(own: Own, out: Path, *words: str, **sections) -> OwnArtifacts:
    plan = {
        "documents": {"folder": str(own.documents)},
        "teacher": {"url": own.teacher.base, "model": "scripted"},
        "policy": {"model": str(MODEL), "platform": "cpu", "prompt": str(PROMPT_FILE)},
        **sections,
    }
    return OwnArtifacts(with_recipes(read_plan(None, plan, words)), out)


def steps(made: OwnArtifacts) -> dict:
    every = steps_until(made, PipelineFolder(made.out), STEP_NAMES[-1])
    return {step.name: step for step in every}


@pytest.fixture(scope="module")
def whole(own: Own, tmp_path_factory) -> dict:
    return steps(artifacts(own, tmp_path_factory.mktemp("whole")))


@pytest.fixture(scope="module")
def four_at_a_time(own: Own, tmp_path_factory):
    """The composed recipe of the demo, with batches of 16 and mini batches of 4."""
    word = "grpo.overrides=[actor_rollout_ref.actor.ppo_mini_batch_size=4]"
    return artifacts(own, tmp_path_factory.mktemp("four"), word).episodes.config


def test_every_step_builds_on_earlier_ones(whole):
    assert list(whole) == [*STEP_NAMES[:-1], *(f"evaluation/{name}" for name in MODELS)]
    for place, (name, step) in enumerate(whole.items()):
        assert set(step.needs) <= set(list(whole)[:place]), name


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["sft.skip=true"], {"traces", "sft_data", "sft", "evaluation/fine_tuned"}),
        (["filter.skip=true"], {"filter"}),
        (["grpo.skip=true"], {"filter", "grpo", "evaluation/fine_tuned"}),
        (["evaluation.one_shot=false"], {"evaluation/one_shot"}),
    ],
)
def test_a_step_that_is_left_out_is_nobodys_need(own: Own, whole, tmp_path, words, left):
    made = steps(artifacts(own, tmp_path, *words))
    assert set(whole) - set(made) == left
    assert all(set(step.needs) <= set(made) for step in made.values())


@pytest.mark.parametrize(
    ("word", "changed"),
    [
        ("questions.per_kind=7", {"questions"}),
        ("teacher.model=other", {"questions", "traces"}),
        ("teacher.url=http://other/v1", set()),
        ("teacher.max_cost=7", set()),
        ("traces.samples=2", {"traces"}),
        ("sft.overrides=[trainer.total_epochs=2]", {"sft"}),
        ("filter.share=0.5", {"filter"}),
        ("grpo.steps=7", {"grpo"}),
        ("evaluation.questions=7", {f"evaluation/{name}" for name in MODELS}),
        ("evaluation.card=false", {"evaluation/trained"}),
    ],
)
def test_a_key_changes_the_settings_of_the_steps_that_it_is_for(own: Own, whole, tmp_path, word, changed):
    after = steps(artifacts(own, tmp_path, word))
    assert {name for name in whole if whole[name].settings != after[name].settings} == changed


@pytest.mark.parametrize("recipe", ["demo/grpo", "real_small/grpo"])
def test_training_filter_and_evaluation_play_with_the_limits_of_the_recipe(own: Own, tmp_path, recipe):
    made = artifacts(own, tmp_path, grpo={"recipe": recipe}, sft={"skip": True})
    config = made.episodes.config
    (tmp_path / "step").mkdir()
    played = [
        filter_arguments(made, tmp_path, URL, "http://127.0.0.1:1/v1"),
        *(
            eval_arguments(made, each, URL)
            for each in evaluations(made)
            if not each.is_one_shot and not each.needs
        ),
    ]
    teacher = traces_arguments(made, tmp_path / "step", URL, None)
    for args in (*played, teacher):
        for section, name in LIMITS:
            assert f"rag_r1.{section}.{name}={config.rag_r1[section][name]}" in args.overrides
    for args in played:
        assert f"rag_r1.agent.max_turn_tokens={config.rag_r1.agent.max_turn_tokens}" in args.overrides
        assert (args.max_prompt_tokens, args.max_response_tokens) == (
            config.data.max_prompt_length,
            config.data.max_response_length,
        )
        assert args.prompt == str(PROMPT_FILE)
    assert "rag_r1.agent.max_turn_tokens=1024" in teacher.overrides
    prompt = Path(teacher.prompt).read_text()
    assert "{question}" in prompt and "<search>" in prompt, (
        "the whole format, which the policy's prompt lacks"
    )
    assert f"at most {config.rag_r1.agent.max_turn_tokens // 2} words" in prompt


@pytest.mark.parametrize(("recipe", "turns", "answer"), [("demo/grpo", 3, 48), ("rag_r1/grpo", 5, 1024)])
def test_one_search_has_the_room_of_an_episode_for_its_passages(own: Own, tmp_path, recipe, turns, answer):
    made = artifacts(own, tmp_path, grpo={"recipe": recipe})
    one_shot = next(each for each in evaluations(made) if each.is_one_shot)
    args = eval_arguments(made, one_shot, URL)
    assert args.max_prompt_tokens + args.max_response_tokens == made.episodes.context_tokens
    assert args.baseline == "one_shot" and args.max_response_tokens == answer
    assert made.episodes.max_turns == turns, "the limits of the recipe's validation"


def test_the_trainings_start_from_the_right_model_and_can_be_resumed(own: Own, tmp_path, monkeypatch):
    monkeypatch.setattr(training_steps, "_rows", lambda path: 64)
    made = artifacts(own, tmp_path, "grpo.steps=9", "sft.overrides=[data.train_batch_size=8]")
    config = compose_recipe(training_steps.Recipe.find("demo/grpo"), grpo_overrides(made, URL))
    assert config.actor_rollout_ref.model.path == str(made.sft_model)
    assert config.data.train_files == str(tmp_path / "filter" / "train.parquet")
    assert (config.trainer.total_training_steps, config.trainer.save_freq) == (9, 3)
    assert config.trainer.resume_mode == "auto"
    never = artifacts(own, tmp_path, "grpo.steps=9", "grpo.overrides=[trainer.save_freq=-1]")
    assert "trainer.save_freq=3" in never.episodes.training_overrides[-1:]
    assert "hf_model" in config.actor_rollout_ref.actor.checkpoint.save_contents
    sft = compose_recipe(training_steps.Recipe.find("rag_r1/sft/demo"), sft_overrides(made))
    assert (sft.model.path, sft.data.train_batch_size) == (str(made.untrained_model), 8)
    assert sft.data.max_length == made.episodes.context_tokens
    plain = artifacts(own, tmp_path, "sft.skip=true", "filter.skip=true")
    config = compose_recipe(training_steps.Recipe.find("demo/grpo"), grpo_overrides(plain, URL))
    assert config.actor_rollout_ref.model.path == str(plain.untrained_model)
    assert config.data.train_files == str(tmp_path / "questions" / "train.parquet")


@pytest.mark.parametrize(
    ("rows", "batch", "mini"),
    [(16, None, None), (15, 12, 4), (4, 4, 4), (3, 3, 3), (2, 2, 2)],
)
def test_fewer_questions_than_a_batch_are_whole_mini_batches(four_at_a_time, rows, batch, mini):
    key = "actor_rollout_ref.actor.ppo_mini_batch_size"
    expected = [] if batch is None else [f"data.train_batch_size={batch}", f"{key}={mini}"]
    assert batch_that_fits(rows, four_at_a_time) == expected


def test_no_question_is_too_few(four_at_a_time):
    with pytest.raises(RunError, match="too few to train on .* raise questions.per_kind"):
        batch_that_fits(0, four_at_a_time)


def test_the_trainings_are_child_processes_with_these_words(own: Own, tmp_path, monkeypatch):
    class Started(Exception):
        """The words of a command that is not started."""

    def start(*words: object, **unused: object) -> None:
        raise Started(*words)

    monkeypatch.setattr(training_steps, "run_module", start)
    monkeypatch.setattr(training_steps, "train", lambda words, folder: start(*words))
    monkeypatch.setattr(training_steps, "_rows", lambda path: 64)
    monkeypatch.setattr(OwnArtifacts, "retriever", lambda self, folder: nullcontext(URL))
    made = steps(artifacts(own, tmp_path))
    for name, module in (("sft", "rag_r1.sft.train_command"), ("grpo", "rag_r1.training.stages")):
        with pytest.raises(Started) as started:
            made[name].work(tmp_path)
        assert module in started.value.args


def test_a_document_that_cannot_be_read_is_not_counted(own: Own, tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "notes.txt").write_text("A text.")
    (docs / "latin.txt").write_bytes("Käse".encode("latin-1"))
    documents = {"folder": str(docs), "skip_bad_files": True}
    step = steps(artifacts(own, tmp_path, documents=documents))["documents"]
    assert step.work(tmp_path / "step") == {"documents": 1, "passages": 1}


def test_the_loss_of_sft_is_that_of_its_last_validation_also_after_a_kill(own: Own, tmp_path, monkeypatch):
    """The second invocation has nothing left to train, and its log is empty."""
    run = tmp_path / "run"
    run.mkdir()
    lines = [{"step": step, "data": {"val/loss": loss}} for step, loss in ((1, 3.0), (2, 2.5))]
    (run / "metrics-1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr(training_steps, "run_module", lambda *unused, **also: (run / "metrics.jsonl").touch())
    monkeypatch.setattr(training_steps, "_rows", lambda path: 64)
    assert steps(artifacts(own, tmp_path))["sft"].work(tmp_path) == {"samples": 64, "loss": 2.5}
