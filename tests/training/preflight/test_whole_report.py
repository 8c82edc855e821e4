"""One report names everything that is wrong with a run, and a server with a token can be trained against."""

from __future__ import annotations

import json
import sys
from itertools import chain
from pathlib import Path
from unittest.mock import Mock

import pytest
from omegaconf import OmegaConf

from rag_r1.config.recipes import Recipe
from rag_r1.config.schema import RagR1Config
from rag_r1.runs.errors import RunError
from rag_r1.sft.train_command import main as sft
from rag_r1.tools.retrieval.local_server import build_index, retrieval_process
from rag_r1.training.command import absolute_paths, main
from rag_r1.training.composition import compose_recipe, compose_valid
from rag_r1.training.preflight import PreflightReport, check_retriever, preflight
from rag_r1.training.progress import train
from tests.fakes.json_server import JsonStub
from tests.fakes.web_page import WebPage

SECRET = "correct-horse-battery-staple"
RECIPE = "recipes/rag_r1/ppo_mq"
ACTOR = "actor_rollout_ref.actor"

pytestmark = pytest.mark.slow  # composing a recipe takes most of a second, a server several


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's own, from which the command is given."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    return tmp_path


# --- all at once


WRONG_REWARDS = (
    "[{term: no_such}, {term: em, wieght: 2}, {term: f1, weight: heavy, normaliser: x},"
    ' {term: "nowhere:f"}, {term: cover_em, ordered: 3}]'
)
#: Override -> the keys and files that the report names for it.
WRONG = {
    "rag_r1.agent.max_turn=3": ["rag_r1.agent.max_turn"],
    "trainer.total_step=3": ["trainer.total_step"],
    "rag_r1.agent.max_turn_tokens=-1": ["rag_r1.agent.max_turn_tokens"],
    "rag_r1.agent.max_turns=many": ["rag_r1.agent.max_turns"],
    "+rag_r1.failures.retry=1": ["rag_r1.failures.retry"],
    "+rag_r1.colour=blue": ["rag_r1.colour"],
    f"rag_r1.reward={WRONG_REWARDS}": [
        f"rag_r1.reward[{key}"
        for key in "0].term 1].wieght 2].weight 2].normaliser 3].term 4].ordered".split()
    ],
    "rag_r1.retriever.topk=0": ["rag_r1.retriever.topk"],
    "rag_r1.retriever.timeout_s=0": ["rag_r1.retriever.timeout_s"],
    "rag_r1.retriever.retries=-1": ["rag_r1.retriever.retries"],
    "+rag_r1.validation_retriever.cache_size=-1": ["rag_r1.validation_retriever.cache_size"],
    "rag_r1.retriever.url=http://127.0.0.1:9": ["rag_r1.retriever.url"],
    "data.train_files=no_train.parquet": ["no_train.parquet"],
    "data.val_files=no_test.parquet": ["no_test.parquet"],
    "actor_rollout_ref.model.path=./no_model": ["actor_rollout_ref.model.path"],
    "data.max_response_length=9000": ["data.max_prompt_length + data.max_response_length"],
}


def test_one_report_names_every_wrong_key_reward_and_file_and_the_dead_server(here, capsys):
    assert main(["--recipe", RECIPE, *WRONG]) == 1
    errors = capsys.readouterr().err
    named = [line.split(": ")[1] for line in errors.splitlines() if line.startswith("error: ")]
    assert set(chain(*WRONG.values())) <= set(named)
    assert len(named) == len(set(named)), "each is told once"
    assert "did you mean rag_r1.agent.max_turns?" in errors
    assert "no retrieval server answers at http://127.0.0.1:9" in errors


def test_the_recipe_is_named_before_anything_slow_is_imported(capsys, monkeypatch):
    monkeypatch.setattr("rag_r1.training.command.compose_valid", Mock(side_effect=RunError("late")))
    assert main(["--recipe", RECIPE]) == 1
    assert capsys.readouterr().err.startswith(f"checking {RECIPE} ...\n")


@pytest.mark.parametrize(
    ("command", "recipe"),
    [(main, "no_such"), (main, "rag_r1/sft/demo"), (sft, "no_such"), (sft, "demo/grpo")],
)
def test_a_recipe_that_is_none_for_the_command_hides_no_wrong_argument(command, recipe, here, capsys):
    data = ["--data", "afile"] if command is sft else []
    assert command(["--recipe", recipe, *data, "--check-only", "foo", "data=7"]) == 1
    errors = capsys.readouterr().err
    assert recipe in errors and "foo: this is not" in errors and "data: is a block of keys" in errors
    assert not data or "--data afile is not a folder" in errors


@pytest.mark.parametrize("flags", [["--supervise", "--leave-model"], []])
def test_contents_of_a_checkpoint_a_logger_and_a_folder_that_are_none_are_named(flags, here, capsys):
    key = "actor_rollout_ref.actor.checkpoint.save_contents"
    wrong = [f"{key}=5", "trainer.logger=5", "trainer.default_local_dir=null", "trainer.nnodes=x"]
    assert main(["--recipe", RECIPE, *flags, *wrong]) == 1
    errors = capsys.readouterr().err
    assert f"error: {key}: is 5, which is not a list of names" in errors
    assert "error: trainer.default_local_dir: must be given" in errors
    assert ("error: trainer.logger: lacks `file`" in errors) == ("--supervise" in flags)


def test_a_wrong_protocol_does_not_hide_the_files_nor_the_server(here, capsys):
    overrides = ["rag_r1.protocol=no_such", "data.train_files=none.parquet", "rag_r1.retriever.topk=0"]
    assert main(["--recipe", RECIPE, *overrides, "rag_r1.retriever.url=http://127.0.0.1:9"]) == 1
    errors = capsys.readouterr().err
    for key in ("rag_r1.protocol", "none.parquet", "rag_r1.retriever.topk", "rag_r1.retriever.url"):
        assert f"error: {key}: " in errors


def test_no_message_repeats_the_key_that_it_begins_with(here, capsys):
    main(["--recipe", RECIPE, *WRONG])
    lines = capsys.readouterr().err.splitlines()
    parts = [line.split(": ", 2) for line in lines if line.startswith("error: ")]
    assert parts and [key for _, key, text in parts if key in text] == []


def test_an_override_that_cannot_be_read_is_named_and_the_others_are_checked():
    words = ["data.train_batch_size=[", "algorithm.filter_groups=true", "rag_r1.agent.max_turns=7"]
    config, faults = compose_valid(Recipe.find(RECIPE), words)
    assert [fault.where for fault in faults] == ["data.train_batch_size", "algorithm.filter_groups"]
    assert config.rag_r1.agent.max_turns == 7
    with pytest.raises(RunError):
        compose_valid(Recipe(Path("/nowhere"), "none"), [])


def test_entries_of_lists_that_are_not_there_are_named_with_the_list_and_hide_nothing():
    wrong = ["rag_r1.reward.terms=7", "trainer.logger.x=5", "trainer.no_such=4", "rag_r1.reward.9.term=em"]
    config, faults = compose_valid(Recipe.find(RECIPE), [*wrong, "rag_r1.agent.max_turns=7"])
    assert {fault.where for fault in faults} == {override.partition("=")[0] for override in wrong}
    assert [fault.what for fault in faults if "rag_r1.reward" in fault.where] == [
        "rag_r1.reward is a list of 1"
    ] * 2
    assert config.rag_r1.agent.max_turns == 7


def test_a_wrong_number_does_not_hide_files_that_are_not_there(here, capsys):
    overrides = ["trainer.total_training_steps=x", "data.train_files=q.jsonl", "data.val_files=none.parquet"]
    assert main(["--recipe", RECIPE, *overrides]) == 1
    errors = capsys.readouterr().err
    for key in ("trainer.total_training_steps", "q.jsonl", "none.parquet"):
        assert f"error: {key}: " in errors


@pytest.mark.parametrize(
    "override",
    ["data=null", "trainer=3", "+reward=[]", "transfer_queue=null", f"{ACTOR}=null", f"{ACTOR}.optim=null"],
)
def test_a_block_that_a_value_replaces_is_named_and_the_others_are_checked(override):
    config, faults = compose_valid(Recipe.find(RECIPE), [override, "rag_r1.agent.max_turns=7"])
    key, _, value = override.lstrip("+").partition("=")
    assert [fault.where for fault in faults] == [key] and value in faults[0].what
    assert config.rag_r1.agent.max_turns == 7 and config.data.train_batch_size


@pytest.mark.parametrize(
    "override",
    [
        *("~data.train_batch_size", "~trainer.nnodes", "~trainer.device", "~data.max_response_length"),
        *("~critic.model", "actor_rollout_ref=x", "~algorithm.adv_estimator", "rag_r1.probes=${oc.env:NO_X}"),
        *("data.val_batch_size=${data.nope}", "data.max_prompt_length=${data.max_prompt_length}"),
    ],
)
def test_a_value_that_cannot_be_read_is_named_once_and_hides_nothing(override):
    config, faults = compose_valid(Recipe.find("demo/ppo_mq"), [override, "rag_r1.retriever.topk=0"])
    problems = [*faults, *preflight(config).errors]
    key = override.lstrip("~").partition("=")[0]
    assert [problem.where for problem in problems].count(key) == 1
    assert "rag_r1.retriever.topk" in {problem.where for problem in problems}


def test_a_key_that_another_override_deletes_is_named_by_the_one_that_deletes_it():
    words = ["actor_rollout_ref.model.path=x", "~actor_rollout_ref.model", "data.seed=${nope}"]
    _, faults = compose_valid(Recipe.find(RECIPE), words)
    assert {fault.where for fault in faults} == {"actor_rollout_ref.model", "data.seed"}
    with pytest.raises(RunError, match=r"trainer.default_local_dir.*build on"):
        compose_recipe(Recipe.find("rag_r1_defaults"), [])


# --- files and modules of the caller's


def test_a_reward_beside_the_caller_is_found(here, capsys):
    (here / "beside_the_caller.py").write_text("def brevity(trajectory, golds): return 1.0\n")
    main(["--recipe", RECIPE, 'rag_r1.reward=[{term: "beside_the_caller:brevity"}]'])
    errors = capsys.readouterr().err
    assert "error: " in errors and "rag_r1.reward" not in errors


def test_a_reward_that_is_not_there_is_told_once_with_the_file_and_pythonpath(here, capsys):
    main(["--recipe", RECIPE, 'rag_r1.reward=[{term: "not_there:brevity"}]'])
    errors = capsys.readouterr().err
    assert errors.count("rag_r1.reward[0].term") == 1 and errors.count("cannot import") == 1
    assert f"not_there.py was looked for in {here}" in errors
    assert "start from the folder that holds not_there.py, or put that folder on PYTHONPATH" in errors


def test_relative_files_and_those_in_the_home_folder_are_handed_on_by_their_whole_names(here, monkeypatch):
    monkeypatch.setenv("HOME", str(here))
    for name in ("train.parquet", "prompt.txt", "mine.yaml", "rag_r1_mq"):
        (here / name).write_text("")
    config = OmegaConf.create(
        {
            "rag_r1": {"protocol": "mine.yaml", "prompt": "~/prompt.txt"},
            "actor_rollout_ref": {"model": {"path": "org/name"}},
            "data": {"train_files": ["train.parquet", "/elsewhere/b.parquet"], "val_files": "none.parquet"},
            "trainer": {"default_local_dir": "~/runs/new"},
        }
    )
    config.rag_r1.trajectory_dir = "${trainer.default_local_dir}/trajectories"
    config.rag_r1.probe_passages = "prompt.txt"
    assert absolute_paths(config) == [
        f"rag_r1.protocol='{here / 'mine.yaml'}'",
        f"rag_r1.prompt='{here / 'prompt.txt'}'",
        f"data.train_files=['{here / 'train.parquet'}','/elsewhere/b.parquet']",
        f"rag_r1.probe_passages='{here / 'prompt.txt'}'",
        f"rag_r1.trajectory_dir='{here / 'runs/new/trajectories'}'",
        f"trainer.default_local_dir='{here / 'runs/new'}'",
    ]
    config.trainer.default_local_dir = "outputs/new"
    config.rag_r1 = {"protocol": "rag_r1_mq", "prompt": None}
    config.data.train_files = None
    assert absolute_paths(config) == []


def test_what_whole_paths_says_is_what_hydra_reads(here):
    (here / "it's.yaml").write_text("")
    config = OmegaConf.create({"rag_r1": {"protocol": "it's.yaml"}})
    composed = compose_recipe(Recipe.find(RECIPE), absolute_paths(config))
    assert composed.rag_r1.protocol == str(here / "it's.yaml")


def test_the_demo_trains_in_the_callers_folder(here):
    train([sys.executable, "-c", "import os; print(os.getcwd())"], here, timeout_s=60)
    assert (here / "train.log").read_text().strip() == str(here)


@pytest.mark.parametrize("recipe", ["recipes/rag_r1/grpo", "recipes/r1_searcher/stage1_qwen"])
def test_trajectories_go_into_the_runs_own_folder_unless_told_otherwise(recipe):
    def folder(*overrides):
        config = compose_recipe(Recipe.find(recipe), ["rag_r1.retriever.url=http://x", *overrides])
        settings = RagR1Config.from_config(OmegaConf.to_container(config.rag_r1, resolve=True))
        return settings.trajectory_dir

    assert folder("trainer.default_local_dir=/runs/mine") == "/runs/mine/trajectories"
    assert folder("rag_r1.trajectory_dir=null") is None


# --- a server that asks for a token


@pytest.fixture(scope="module")
def guarded(tmp_path_factory) -> str:
    """The address of a real server that asks for SECRET."""
    folder = tmp_path_factory.mktemp("guarded")
    rows = [{"id": str(i), "contents": f"Paris {i}\nThe river Seine flows through Paris."} for i in range(5)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    index = build_index(folder / "corpus.jsonl", folder / "index", "--backend", "bm25")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RETRIEVAL_TOKEN", SECRET)
        with retrieval_process(index, folder / "server.log") as url:
            yield url


def report_of(url: str, **options) -> PreflightReport:
    report = PreflightReport()
    retriever = {"url": url, "timeout_s": 65.0, **options}
    check_retriever(OmegaConf.create({"rag_r1": {"retriever": retriever}}), report)
    return report


def test_a_web_page_in_place_of_a_retrieval_server_is_named():
    with WebPage() as page:
        (problem,) = report_of(page.url).problems
    assert page.url in problem.what and "web page" in problem.what
    assert (problem.where, problem.remedy) == ("rag_r1.retriever.url", "correct the address")


def test_the_preflight_sends_the_token_as_the_client_does_and_tells_nobody(guarded, monkeypatch, caplog):
    caplog.set_level("DEBUG")
    monkeypatch.setenv("RETRIEVAL_TOKEN", f" {SECRET}\n")
    report = report_of(guarded)
    assert report.problems == []
    assert report.notes[0] == f"{guarded}: answered a test search with 3 documents"
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("token", "words"),
    [
        (None, "requires a token (HTTP 401)"),
        (f"{SECRET}x", "does not accept the token (HTTP 401)"),
        (f"{SECRET}\nx", "not allowed in the header"),
        (f"{SECRET}é", "not allowed in the header"),
    ],
)
def test_a_token_that_is_missing_or_wrong_is_told_without_it(guarded, monkeypatch, caplog, token, words):
    caplog.set_level("DEBUG")
    monkeypatch.delenv("RETRIEVAL_TOKEN", raising=False)
    if token is not None:
        monkeypatch.setenv("RETRIEVAL_TOKEN", token)
    [problem] = report_of(guarded).problems
    assert problem.level == "error" and words in problem.what
    assert "RETRIEVAL_TOKEN" in str(problem) and SECRET not in str(problem) + caplog.text


def test_agentic_input_with_an_index_without_a_separator_is_an_error(guarded, monkeypatch):
    monkeypatch.setenv("RETRIEVAL_TOKEN", SECRET)
    [problem] = report_of(guarded, agentic_input=True).problems
    assert (problem.level, problem.where) == ("error", "rag_r1.retriever.agentic_input")
    assert "of kind bm25, has no separator" in problem.what and "--encoder MODEL" in problem.remedy


def test_agentic_input_with_an_encoder_is_noted_with_its_separator():
    ready = {"backend": "dense", "separator": " [SEP] ", "max_length": 512, "query_prefix": "query: "}
    documents = {"result": [[{"id": str(i), "contents": "The Seine."} for i in range(3)]]}
    with JsonStub(lambda request: ready if request.path == "/ready" else documents) as server:
        report = report_of(server.url, agentic_input=True)
    assert report.problems == []
    assert report.notes[0] == f"{server.url}: separator ' [SEP] ', mode agentic, queries of up to 512 tokens"


def test_a_mode_that_the_encoder_was_not_trained_with_is_an_error():
    ready = {"backend": "dense", "separator": " [SEP] ", "query_mode": "history"}
    with JsonStub(lambda request: ready) as server:
        [problem] = report_of(server.url, agentic_input=True, mode="agentic").problems
    assert (problem.level, problem.where) == ("error", "rag_r1.retriever.mode")
    assert "it is agentic, but the encoder of the index was trained with history" in problem.what


def test_the_rest_of_a_wrong_configuration_does_not_keep_the_server_from_being_asked(guarded, monkeypatch):
    monkeypatch.setenv("RETRIEVAL_TOKEN", SECRET)
    overrides = [f"rag_r1.retriever.url={guarded}", "rag_r1.retriever.topk=0"]
    report = preflight(compose_recipe(Recipe.find(RECIPE), overrides))
    assert "rag_r1.retriever.topk" in {problem.where for problem in report.errors}
    assert any("answered a test search" in note for note in report.notes)
