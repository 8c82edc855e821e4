"""Bad input is named with its key or row and a remedy before anything starts, all of it at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from rag_r1.config.schema import RagR1Config
from rag_r1.options.problems import PreflightReport
from rag_r1.protocols import load_protocol
from rag_r1.training.command import main
from rag_r1.training.preflight import preflight
from rag_r1.training.preflight.data import check_data, check_steps
from rag_r1.training.preflight.model import check_tags
from rag_r1.training.preflight.parquet import column_problems, scan_parquet, scan_problems
from rag_r1.training.preflight.sampler import check_sampler
from rag_r1.training.preflight.settings import check_lengths, check_log_probs, check_rag_r1_keys
from rag_r1.training.preflight.verls_keys.validation import check_verl
from rag_r1.training.stages import check_export
from tests.fakes.json_server import JsonStub
from tests.fakes.retriever import results
from tests.recipes.composed_recipes import changed, compose_quickly

PROTOCOL = load_protocol("rag_r1_mq")
COLUMNS = (
    """prompt data_source reward_model.ground_truth extra_info.id extra_info.question extra_info.protocol"""
)


def row(number: int, **changes: Any) -> dict[str, Any]:
    question = changes.pop("question", f"Which river flows through town {number}?")
    columns = {
        "data_source": "hotpotqa",
        "prompt": PROTOCOL.messages(str(question)),
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": ["Seine"]}},
        "extra_info": {"id": f"row-{number}", "question": question, "protocol": "rag_r1_mq", "index": number},
    }
    for key, value in changes.items():
        outer, _, inner = key.partition("__")
        if inner:
            columns[outer] = {**columns[outer], inner: value}
        else:
            columns[outer] = value
    return columns


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def problems_of(path: str, **options: Any) -> list[str]:
    settings = {"limit": 2048, "count_tokens": None, "filtered": False, **options}
    messages = lambda record: record.prompt  # noqa: E731
    agents = settings.get("agents")
    scan = scan_parquet(path, "rag_r1_mq", messages, settings["count_tokens"], settings["limit"], agents)
    return [str(p) for p in scan_problems(path, scan, "rag_r1_mq", settings["limit"], settings["filtered"])]


@pytest.fixture(scope="module")
def base_config(model_folder: Path):
    return compose_quickly("recipes/rag_r1/ppo_mq", [f"actor_rollout_ref.model.path={model_folder}"])


# --- data


def test_right_rows_have_no_problem(tmp_path: Path):
    path = write(tmp_path / "train.parquet", [row(i) for i in range(5)])
    assert column_problems(path) == []
    assert problems_of(path) == []


@pytest.mark.parametrize(
    ("content", "text"), [(None, "there is no such file"), ("{}", "is not a readable parquet file")]
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: str | None, text: str):
    path = tmp_path / "train.parquet"
    if content is not None:
        path.write_text(content)
    [problem] = column_problems(str(path))
    assert problem.where == str(path) and text in problem.what


def test_a_folder_in_the_place_of_a_file_is_called_a_folder(tmp_path: Path):
    [problem] = column_problems(str(tmp_path))
    assert problem.what == "is a folder"


@pytest.mark.parametrize("column", COLUMNS.split())
def test_missing_column_is_named(tmp_path: Path, column: str):
    columns, (outer, _, inner) = row(0), column.partition(".")
    del (columns[outer] if inner else columns)[inner or outer]
    [problem] = column_problems(write(tmp_path / "train.parquet", [columns]))
    assert f"has no column {column}" in str(problem)


def test_ground_truth_without_target_is_a_missing_column(tmp_path: Path):
    columns = row(0, reward_model={"style": "rule", "ground_truth": {"answer": "Seine"}})
    [problem] = column_problems(write(tmp_path / "train.parquet", [columns]))
    assert "reward_model.ground_truth" in str(problem)


def test_malformed_rows_are_counted_the_first_named_and_only_warned_of(tmp_path: Path):
    rows = [row(i) for i in range(10)]
    rows[2] = row(2, question="")
    rows[4] = row(4, question=None)
    rows[5] = row(5, reward_model={"style": "rule", "ground_truth": {"target": []}})
    rows[9] = row(9, extra_info=None)
    [problem] = problems_of(write(tmp_path / "train.parquet", rows))
    assert problem.startswith("warning: ")
    assert "4 of 10 rows are malformed" in problem
    assert "row 3: extra_info.question is empty; row 5:" in problem
    assert "row 6: reward_model.ground_truth.target is empty; ..." in problem


def test_rows_without_a_prompt_are_counted_named_and_only_warned_of(tmp_path: Path):
    path = write(tmp_path / "train.parquet", [row(0), row(1, prompt=None), row(2)])
    [problem] = problems_of(path)
    assert problem.startswith("warning: ") and "row 2" in problem


def test_no_usable_row_is_an_error(tmp_path: Path):
    problems = problems_of(write(tmp_path / "train.parquet", [row(0, question=""), row(1, question=" ")]))
    assert any(problem.startswith("error: ") and "no usable row is left" in problem for problem in problems)


def test_rows_of_another_protocol_are_named(tmp_path: Path):
    path = write(tmp_path / "train.parquet", [row(0), row(1, extra_info__protocol="rag_r1_sq")])
    [problem] = problems_of(path)
    assert problem.startswith("error: ")
    assert "row 2: 'rag_r1_sq'" in problem and "rag_r1.protocol" in problem


def test_overlong_prompt_is_named_by_row_unless_verl_drops_it(tmp_path: Path):
    path = write(tmp_path / "train.parquet", [row(0), row(1, question="why " * 400), row(2)])
    words = lambda record: sum(len(m["content"].split()) for m in record.prompt)  # noqa: E731
    [problem] = problems_of(path, count_tokens=words, limit=300)
    assert problem.startswith("error: ") and "row 2: " in problem and "data.max_prompt_length=300" in problem
    [problem] = problems_of(path, count_tokens=words, limit=300, filtered=True)
    assert problem.startswith("warning: ")


def refuse(record):
    raise ValueError("System role not supported")


def test_a_prompt_that_the_chat_template_refuses_is_named_by_its_row(tmp_path: Path):
    problems = problems_of(write(tmp_path / "train.parquet", [row(0)]), count_tokens=refuse)
    assert "row 1: no prompt: System role not" in problems[0] and "no usable row is left" in problems[1]


@pytest.mark.parametrize("name", ["searcher", None])
def test_a_row_for_an_agent_loop_that_does_not_exist_is_named(tmp_path: Path, name: str | None):
    known = [row(0, agent_name="search_agent"), row(1, agent_name=name)]
    path = write(tmp_path / "train.parquet", known)
    [problem] = problems_of(path, agents={"search_agent"})
    assert problem.startswith("error: ") and f"row 2: {name!r}" in problem
    assert problems_of(path) == [], "a module of the user may have it"
    assert problems_of(write(tmp_path / "none.parquet", [row(0)]), agents={"search_agent"}) == []


def test_a_message_of_an_unusual_role_is_warned_of(tmp_path: Path):
    prompt = [{"role": "human", "content": "Who?"}]
    [problem] = problems_of(write(tmp_path / "train.parquet", [row(0, prompt=prompt)]))
    assert problem.startswith("warning: ") and "row 1: 'human'" in problem


def test_a_file_without_rows_that_fit_is_named_instead_of_the_batch(tmp_path: Path, base_config):
    path = write(tmp_path / "train.parquet", [row(0, prompt=[])])
    config = changed(base_config, data__train_files=path, data__val_files=path)
    settings, _ = check_rag_r1_keys(config)
    report = PreflightReport()
    assert check_data(config, settings, None, report) is None
    assert {problem.where for problem in report.errors} == {path}
    [problem] = problems_of(
        write(tmp_path / "long.parquet", [row(0)]), count_tokens=lambda _: 9, limit=5, filtered=True
    )[1:]
    assert "no row is left" in problem and "raise data.max_prompt_length" in problem


def test_of_a_large_file_the_longest_prompts_are_tokenised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rag_r1.training.preflight.parquet.TOKENISED", 3)
    rows = [row(i) for i in range(50)]
    rows[40] = row(40, question="why " * 400)
    path = write(tmp_path / "train.parquet", rows)
    count = lambda record: sum(len(m["content"].split()) for m in record.prompt)  # noqa: E731
    scan = scan_parquet(path, "rag_r1_mq", lambda record: record.prompt, count, 300)
    assert (scan.rows, scan.tokenised, scan.overlong.count) == (50, 3, 1)
    assert "row 41" in str(scan.overlong)
    assert "at least 1 prompts (row 41" in problems_of(path, count_tokens=count, limit=300)[0]
    malformed, none_left = problems_of(path, count_tokens=refuse)
    assert "at least 3 of 50 rows" in malformed and "no usable row is left" in none_left


def test_a_file_whose_rows_cannot_be_read_is_a_problem_beside_the_others(tmp_path: Path, base_config):
    path = tmp_path / "train.parquet"
    rows = [row(i) for i in range(50)]
    pq.write_table(pa.Table.from_pylist(rows), path, compression="none", use_dictionary=False)
    path.write_bytes(b"PAR1" + b"\xff" * 2000 + path.read_bytes()[2004:])
    assert column_problems(str(path)) == []
    config = changed(base_config, data__train_files=str(path), data__val_files=[])
    settings = RagR1Config.from_config({"protocol": "rag_r1_mq"})
    check_data(config, settings, None, report := PreflightReport())
    [problem] = report.errors
    assert problem.where == str(path) and problem.what.startswith("cannot be read to its end")


# --- configuration


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("rag_r1__protocol", "no_such", "rag_r1.protocol"),
        ("rag_r1__prompt", "nowhere.txt", "rag_r1.prompt"),
        ("rag_r1__colour", "blue", "rag_r1.colour"),
        ("rag_r1__agent__max_turns", -1, "rag_r1.agent.max_turns"),
        ("rag_r1__agent__max_episode_tokens", 100, "rag_r1.agent.max_episode_tokens"),
        ("rag_r1__reward", [{"term": "no_such"}], "rag_r1.reward[0].term"),
        ("rag_r1__retriever", {"url": "http://127.0.0.1:1", "topk": 0}, "rag_r1.retriever.topk"),
        ("rag_r1__retriever", {"url": "ftp://x"}, "rag_r1.retriever.url"),
    ],
)
def test_a_wrong_key_of_ours_is_named(base_config, key: str, value: Any, named: str):
    _, problems = check_rag_r1_keys(changed(base_config, **{key: value}))
    assert [problem.where for problem in problems] == [named]


def test_a_batch_that_verl_refuses_is_reported_in_its_words(base_config):
    # veRL looks at it where micro batches are made of rows.
    fixed = changed(base_config, actor_rollout_ref__actor__use_dynamic_bsz=False, data__train_batch_size=100)
    [problem] = check_verl(fixed, has_model=True)
    assert problem.level == "error" and "(100)" in problem.what


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"data__max_response_length": 9000}, "data.max_prompt_length + data.max_response_length"),
        ({"actor_rollout_ref__rollout__max_model_len": 99999}, "actor_rollout_ref.rollout.max_model_len"),
        ({"rag_r1__agent__max_turn_tokens": 9000}, "rag_r1.agent.max_turn_tokens"),
    ],
)
def test_lengths_that_cannot_fit_are_named(base_config, values: dict[str, int], named: str):
    assert [problem.where for problem in check_lengths(changed(base_config, **values))] == [named]


def test_a_limit_of_the_memorys_state_needs_log_probs(base_config):
    limited = changed(base_config, rag_r1__agent__max_state=3.5)
    assert [*check_log_probs(limited)] == []
    [problem] = check_log_probs(changed(limited, actor_rollout_ref__rollout__calculate_log_probs=False))
    assert problem.where == "rag_r1.agent.max_state" and "calculate_log_probs=true" in problem.remedy


def test_old_log_probs_of_the_engine_need_an_engine_that_returns_them_and_are_not_corrected(base_config):
    key = "algorithm.rollout_correction.bypass_mode"
    bypassed = changed(base_config, algorithm__rollout_correction__bypass_mode=True)
    assert [*check_log_probs(bypassed)] == []
    [problem] = check_log_probs(changed(bypassed, actor_rollout_ref__rollout__calculate_log_probs=False))
    assert (problem.level, problem.where) == ("error", key)
    [problem] = check_log_probs(changed(bypassed, algorithm__rollout_correction__rollout_is="token"))
    assert (problem.level, problem.where) == ("warning", key)


def test_a_part_of_the_questions_is_the_same_after_a_resume(base_config):
    report = PreflightReport()
    part = changed(base_config, data__val_max_samples=4)
    check_data(part, None, None, report)
    assert "data.val_max_samples" in {problem.where for problem in report.problems}
    report = PreflightReport()
    check_data(changed(part, data__seed=1), None, None, report)
    assert "data.val_max_samples" not in {problem.where for problem in report.problems}


def test_a_tokenizer_that_hides_a_tag_is_named_with_the_tag(model_folder):
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    settings = RagR1Config.from_config({"protocol": "rag_r1_mq"})
    assert [*check_tags(settings.protocol, tokenizer)] == []
    tokenizer.add_special_tokens({"additional_special_tokens": ["</search>"]})
    (problem,) = check_tags(settings.protocol, tokenizer)
    assert "'</search>'" in str(problem) and problem.level == "error"


def test_a_sampler_for_another_trainer_mode_is_named_with_the_right_one(base_config):
    assert [*check_sampler(base_config)] == []
    [problem] = check_sampler(changed(base_config, trainer__v1__trainer_mode="colocate_async"))
    assert "custom_sampler.name=SearchReplayBufferAsync" in problem.remedy


def test_a_batch_larger_than_the_data_is_an_error(base_config):
    [problem] = check_steps(base_config, 511)
    assert (problem.level, problem.where) == ("error", "data.train_batch_size")


def test_epochs_that_end_before_the_steps_are_warned_of(base_config):
    config = changed(base_config, trainer__total_epochs=50)
    # RAG-R1's single-query set: 4,770 rows give 9 steps an epoch, so 50 epochs end at 450.
    [problem] = check_steps(config, 4770)
    assert (problem.level, problem.where) == ("warning", "trainer.total_epochs")
    assert "step 450" in problem.what and "56" in problem.remedy
    assert [*check_steps(changed(base_config, trainer__total_epochs=56), 4770)] == []


# --- retrieval server


def server(answer: Any, ready: int = 200, status: int = 200) -> JsonStub:
    """A server that speaks (or breaks) the wire."""
    loading = json.dumps({"reason": "the index is still loading"})
    replies = {"GET": (ready, loading), "POST": (status, json.dumps(answer))}
    return JsonStub(lambda request: replies[request.method])


def documents(count: int) -> dict[str, Any]:
    return results([[(str(i), f"text {i}") for i in range(count)]], score=0.5)


@pytest.fixture
def right_config(base_config, tmp_path: Path):
    path = write(tmp_path / "train.parquet", [row(i) for i in range(16)])
    return changed(
        base_config,
        data__train_files=path,
        data__val_files=path,
        data__train_batch_size=16,
        actor_rollout_ref__actor__ppo_mini_batch_size=16,
        trainer__total_epochs=500,
    )


@pytest.mark.slow
def test_a_run_with_everything_in_place_has_no_problem(right_config):
    with server(documents(3)) as served:
        report = preflight(changed(right_config, rag_r1__retriever__url=served.url))
    assert report.problems == []
    assert any("answered a test search with 3 documents" in note for note in report.notes)


@pytest.mark.slow
def test_search_r1s_server_without_health_addresses_is_good_enough(right_config):
    with server(documents(3), ready=404) as served:
        assert (
            preflight(changed(right_config, rag_r1__retriever__url=f"{served.url}/retrieve")).problems == []
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "level", "words"),
    [
        ({"answer": documents(3), "ready": 503}, "error", "not ready"),
        ({"answer": {"error": "x"}, "status": 500}, "error", "HTTP 500"),
        ({"answer": {"something": 1}}, "error", "test search"),
        ({"answer": documents(1)}, "warning", "1 documents, but topk=3"),
    ],
)
def test_a_server_that_is_not_right_is_named(right_config, options: dict, level: str, words: str):
    with server(**options) as served:
        [problem] = preflight(changed(right_config, rag_r1__retriever__url=served.url)).problems
    assert problem.level == level and words in problem.what


def test_all_problems_are_reported_at_once(base_config, tmp_path: Path):
    path = write(tmp_path / "train.parquet", [row(0, extra_info__protocol="rag_r1_sq")])
    config = changed(
        base_config,
        data__train_files=path,
        data__val_files=str(tmp_path / "none.parquet"),
        data__max_response_length=9000,
        actor_rollout_ref__model__path=str(tmp_path / "nothing"),
        rag_r1__retriever__url="http://127.0.0.1:9",
        rag_r1__retriever__timeout_s=2.0,
    )
    wheres = {problem.where for problem in preflight(config).errors}
    assert {
        path,
        str(tmp_path / "none.parquet"),
        "data.max_prompt_length + data.max_response_length",
        "actor_rollout_ref.model.path",
        "rag_r1.retriever.url",
        "data.train_batch_size",
    } <= wheres


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("none.jsonl", None, "no such file"),
        ("questions.csv", "question,answer", "veRL reads .parquet"),
        ("questions.jsonl", '{"question": "Who?"}', "no rows with a prompt"),
    ],
)
def test_a_data_file_that_is_no_parquet_is_looked_at_too(base_config, tmp_path: Path, name, text, what):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    problems = preflight(changed(base_config, data__train_files=str(path))).errors
    [problem] = [problem for problem in problems if problem.where == str(path)]
    assert what in problem.what and "rag-r1 data" in problem.remedy


def test_a_data_file_that_may_not_be_read_is_named_instead_of_a_traceback(base_config, tmp_path, monkeypatch):
    path, report = tmp_path / "questions.jsonl", PreflightReport()
    path.write_text('{"prompt": []}')
    monkeypatch.setattr("os.access", lambda path, mode: False)
    config = changed(base_config, data__train_files=str(path), data__val_files=str(path))
    check_data(config, None, None, report)
    assert [problem.what for problem in report.errors] == ["may not be read"] * 2


@pytest.mark.parametrize("path", [["~nobody-of-this-name/train.parquet"], 2026])
def test_a_path_that_is_none_is_named_by_its_key_instead_of_a_traceback(base_config, path):
    problems = preflight(changed(base_config, data__train_files=path)).errors
    assert "data.train_files" in {problem.where for problem in problems}


def test_a_folder_of_the_run_that_cannot_be_made_is_named(base_config):
    config = changed(base_config, trainer__default_local_dir="/proc/run")
    [problem] = [p for p in preflight(config).errors if p.where == "trainer.default_local_dir"]
    assert "/proc cannot be written to" in problem.what and "choose another folder" in problem.remedy


# --- the command


def test_train_stops_before_verl_and_names_the_remedy(capsys: pytest.CaptureFixture):
    assert main(["--recipe", "recipes/rag_r1/ppo_mq"]) == 1
    errors = capsys.readouterr().err
    assert "rag_r1.retriever.url: must be given" in errors
    assert "the run was not started" in errors


def test_settings_that_leave_no_model_are_refused_for_what_starts_from_it(base_config):
    assert [*check_export(base_config)] == []
    key = "actor_rollout_ref__actor__checkpoint__save_contents".replace("__", ".")
    without = changed(base_config, **{"trainer.save_freq": -1, key: ["model", "optimizer"]})
    (null,) = check_export(changed(base_config, **{"trainer.save_freq": None}))
    assert null.where == "trainer.save_freq"
    problems = [str(problem) for problem in check_export(without)]
    assert "trainer.save_freq: is -1" in problems[0] and "would be lost" in problems[0]
    assert f"set {key}=[model,optimizer,hf_model]" in problems[1]
