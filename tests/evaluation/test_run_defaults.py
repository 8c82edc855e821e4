"""`rag-r1 eval RUN`: what it takes from the folder of a training or an evaluation, and what flags replace."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from rag_r1.agent.records import read_records
from rag_r1.demo.policy import policy_path
from rag_r1.evaluation import command, evaluation_run
from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.evaluation.run_defaults import RunDefaults, defaults_of
from rag_r1.options.settings_file import read_settings
from rag_r1.runs.errors import RunError
from tests.evaluation.test_command import policy_of, report_of, rows_of


def training(folder: Path, **ours) -> Path:
    """The folder of a training as `rag-r1 demo` leaves it, with a tiny policy as its checkpoint."""
    run = folder / "grpo"
    (run / "data").mkdir(parents=True)
    (run / "checkpoints" / "global_step_7" / "actor").mkdir(parents=True)
    exported = run / "checkpoints" / "global_step_7" / "actor" / "huggingface"
    exported.symlink_to(policy_path("rag_r1_mq"), target_is_directory=True)
    (run / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("7")
    config = {
        "rag_r1": {
            "protocol": "rag_r1_mq",
            "prompt": None,
            "agent": {"max_turns": 4, "max_turn_tokens": 48, "final_turn": False, "min_actions": 0},
            "validation_agent": {"max_turns": 3},
            "retriever": {"tool": "retrieval", "url": "http://127.0.0.1:9", "wire": "retrieve", "topk": 2},
            "validation_retriever": {},
            "tools": {},
            "trajectory_dir": "${trainer.default_local_dir}/trajectories",
            **ours,
        },
        "data": {
            "val_files": str(run / "data" / "val.parquet"),
            "max_prompt_length": 400,
            "max_response_length": 416,
        },
        "trainer": {"default_local_dir": str(run / "checkpoints")},
    }
    (run / "hydra" / ".hydra").mkdir(parents=True)
    (run / "hydra" / ".hydra" / "config.yaml").write_text(yaml.safe_dump(config))
    return run


def test_a_training_is_evaluated_as_it_validates_and_the_evaluation_can_be_repeated(
    tmp_path, mq_tokenizer, capsys
):
    run = training(tmp_path)
    rows = rows_of(6, run / "data" / "val.parquet")
    with policy_of(mq_tokenizer, rows) as policy:
        servers = ["--base-url", policy.url, "--retriever-url", policy.url]
        assert command.main([str(run), *servers, "--retries", "1", "rag_r1.agent.max_turns=2"]) == 0
        told = capsys.readouterr().out
        out = run / "evaluation"
        assert [record["question_id"] for record in read_records(out / "trajectories")] == [
            row.id for row in rows
        ]
        made = json.loads((out / "provenance.json").read_text())
        assert made["budget"]["max_turns"] == 2 and made["budget"]["final_turn"] is False
        assert (made["budget"]["max_turn_tokens"], made["budget"]["max_response_tokens"]) == (48, 416)
        assert made["retriever"]["topk"] == 2 and made["model"]["name"].endswith("global_step_7")
        assert f"from {run / 'hydra' / '.hydra' / 'config.yaml'}: questions " in told
        assert f"from {run / 'checkpoints'}: model " in told and "retriever_url" not in told

        for words in ([str(out)], [f"@{out / 'settings.yaml'}"]):
            again = tmp_path / f"again{len(list(tmp_path.iterdir()))}"
            assert command.main([*words, "--out", str(again)]) == 0
            assert report_of(again)["figures"]["em"] == report_of(out)["figures"]["em"]
            one, two = (read_settings(folder / "settings.yaml", EvalArguments) for folder in (out, again))
            assert two == {**one, "out": str(again)}
        assert f"from {out / 'settings.yaml'}: " in capsys.readouterr().out


def test_the_index_of_a_run_is_served_unless_a_server_is_named(tmp_path, monkeypatch):
    run = training(tmp_path)
    (run / "index").mkdir()
    (run / "index" / "manifest.json").write_text("{}")
    played: list[EvalArguments] = []

    @contextmanager
    def served(index: Path, log: Path):
        assert log.parent.is_dir()
        yield f"http://127.0.0.1:1/{index.name}"

    def prepare(args: EvalArguments):
        if args.serve_index is None or args.index is not None:  # else it is checked before its server starts
            played.append(args)
            raise RunError("far enough")

    monkeypatch.setattr(evaluation_run, "retrieval_process", served)
    monkeypatch.setattr(evaluation_run, "prepare_evaluation", prepare)
    monkeypatch.setattr(evaluation_run, "_condition_of", lambda *unused: None)
    assert command.main([str(run)]) == 1
    assert command.main([str(run), "--retriever-url=http://127.0.0.1:2"]) == 1
    (tmp_path / "mine.yaml").write_text("retriever_url: http://127.0.0.1:3")
    assert command.main([str(run), f"@{tmp_path / 'mine.yaml'}"]) == 1
    assert command.main([str(run), "--retriever", "http://127.0.0.1:3"]) == 1
    (tmp_path / "index.yaml").write_text(f"serve_index: {run / 'index'}")
    policy = ["--model", played[0].model, "--questions", str(played[0].questions[0])]
    words = [f"@{tmp_path / 'index.yaml'}", *policy, "--out", str(tmp_path / "out")]
    assert command.main([*words, "--retriever-url", "http://127.0.0.1:3"]) == 1
    first, second, *others = played
    assert len(others) == 3
    assert {(args.retriever_url, args.index) for args in others} == {("http://127.0.0.1:3", None)}
    assert (first.retriever_url, first.index) == ("http://127.0.0.1:1/index", run / "index")
    assert (second.retriever_url, second.index) == ("http://127.0.0.1:2", None)
    assert first.model == str(run / "checkpoints" / "global_step_7" / "actor" / "huggingface")


@pytest.mark.parametrize("flag", ["--retriever-url=http://127.0.0.1:2", "--retriever=http://127.0.0.1:2"])
@pytest.mark.parametrize("of_run", [True, False])
def test_an_index_to_serve_and_a_server_are_refused_if_both_are_given(flag, of_run, tmp_path, capsys):
    words = [str(training(tmp_path))] if of_run else ["--model", str(tmp_path / "no_model")]
    with pytest.raises(SystemExit):
        command.main([*words, "--serve-index", str(tmp_path / "no_index"), flag])
    message = capsys.readouterr().err
    assert "--serve-index starts a retrieval server: leave out --retriever-url" in message
    assert "3 problems:" in message, "the missing index, and the missing model or questions, are named, too"


def test_a_run_is_known_by_its_checkpoints_too_and_may_have_been_moved(tmp_path):
    rows_of(1, training(tmp_path / "old") / "data" / "val.parquet")
    run = tmp_path / "new"
    shutil.move(tmp_path / "old" / "grpo", run)
    for folder in (run, run / "checkpoints"):
        values = defaults_of(folder).values
        assert values["questions"] == [run / "data" / "val.parquet"]
        assert values["model"] == str(run / "checkpoints" / "global_step_7")
        assert values["out"] == run / "evaluation"


def test_an_empty_list_of_a_run_is_not_among_the_printed_defaults(tmp_path):
    values = {"protocol": "\x1b[2Jmine", "overrides": []}
    defaults = RunDefaults(values, dict.fromkeys(values, tmp_path))
    assert defaults.lines(SimpleNamespace(**values)) == [f"from {tmp_path}: protocol \ufffd[2Jmine"]


def test_a_home_that_nobody_has_hides_no_checkpoint_in_the_runs_own_folder(tmp_path):
    run = training(tmp_path)
    config = run / "hydra" / ".hydra" / "config.yaml"
    config.write_text(config.read_text().replace(f"_dir: {run}", "_dir: ~nobody_at_all"))
    assert defaults_of(run).values["model"] == str(run / "checkpoints" / "global_step_7")


def test_every_limit_of_the_validation_is_taken(tmp_path):
    limits = {"max_observation_tokens": 80, "min_turn_tokens": 8, "max_episode_tokens": 900}
    overrides = defaults_of(training(tmp_path, validation_agent=limits)).values["overrides"]
    assert {f"rag_r1.agent.{name}={value}" for name, value in limits.items()} <= set(overrides)


def test_a_search_and_tools_of_the_trainings_own_are_taken(tmp_path):
    own = {"tool": "mine:search", "url": "http://127.0.0.1:1", "agentic_input": True, "entries": {"a": "1"}}
    run = training(tmp_path, retriever=own, prompt="p.txt", tools={"calculator": "calculator"})
    values = defaults_of(run).values
    assert values["overrides"][-4:] == [
        "rag_r1.retriever.agentic_input=true",
        "rag_r1.retriever.entries={a: '1'}",
        "rag_r1.retriever.tool=mine:search",
        'rag_r1.tools={"calculator": "calculator"}',
    ]
    assert (values["prompt"], values["retriever_url"]) == ("p.txt", own["url"])


@pytest.mark.parametrize(
    ("file", "text", "named"),
    [
        (None, "", "settings.yaml"),
        ("settings.yaml", "teacher_model: t", "teacher_model"),
        ("hydra/.hydra/config.yaml", "a: 1", "config.yaml"),
        ("hydra/.hydra/config.yaml", "a: [", "config.yaml"),
        ("hydra/.hydra/config.yaml", "- 1", "config.yaml"),
        (
            "hydra/.hydra/config.yaml",
            "rag_r1: {protocol: p}\ntrainer: {default_local_dir: d}\n"
            "data: {val_files: [1], max_prompt_length: 9, max_response_length: 9}",
            "config.yaml",
        ),
    ],
)
def test_a_folder_that_is_no_such_run_is_refused(tmp_path, capsys, file, text, named):
    if file is not None:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    with pytest.raises(SystemExit):
        command.main([str(tmp_path)])
    assert named in capsys.readouterr().err
