"""What a plan is refused for before anything starts: in one sentence each, and all together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rag_r1.data.rows import QuestionRow, write_rows
from rag_r1.demo.policy import policy_path
from rag_r1.own import command
from rag_r1.own.artifacts import OwnArtifacts
from rag_r1.own.checks import check_plan, with_teacher_name
from rag_r1.own.plan_file import read_plan
from rag_r1.own.sizes import with_recipes
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import StartError
from rag_r1.runs.steps import PipelineFolder
from tests.fakes.openai_server import OpenAIServer
from tests.own.conftest import Own

MODEL = str(policy_path("rag_r1_mq"))


def problems(tmp_path: Path, **sections) -> list[str]:
    sections = {
        "documents": {"folder": str(tmp_path)},
        "policy": {"model": MODEL, "platform": "cpu"},
        "teacher": {"url": "http://127.0.0.1:9/v1", "model": "m"},
        **sections,
    }
    plan = with_recipes(read_plan(None, sections))
    with pytest.raises(StartError) as refused:
        check_plan(OwnArtifacts(plan, tmp_path / "out"), PipelineFolder(tmp_path / "out"))
    return refused.value.problems


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"documents": {}}, "documents"),
        ({"documents": {"folder": "a", "corpus": ["b.jsonl"]}}, "documents"),
        ({"index": {"backend": "dense"}}, "index.encoder"),
        ({"index": {"encoder": "owner/name"}}, "index.encoder needs index.backend=dense"),
        ({"policy": {"model": MODEL, "url": "http://127.0.0.1:9/v1"}}, "policy.url"),
        ({"teacher": {}}, "teacher.url"),
        ({"teacher": {"url": "http://127.0.0.1:9/v1", "max_cost": 1}}, "teacher.price_in"),
        ({"reader": {"url": "http://127.0.0.1:9/v1"}}, "reader.model"),
        ({"reader": {"price_out": 1}}, "reader.model"),
        ({"questions": {"train": ["q.jsonl"]}}, "questions.test"),
        ({"questions": {"test": ["q.jsonl"]}}, "questions.train"),
        ({"sft": {"skip": True}, "grpo": {"skip": True}, "evaluation": {"skip": True}}, "evaluation.skip"),
        ({"questions": {"test_share": 0.0}}, "questions.test_share 0"),
        ({"questions": {"test_share": 1.0}}, "questions.test_share 1"),
    ],
)
def test_a_contradiction_names_its_key_and_the_remedy(tmp_path, sections, key, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    for folder in (tmp_path, tmp_path / "a"):
        (folder / "notes.txt").write_text("A text.")
    (tmp_path / "b.jsonl").write_text('{"id": "1", "contents": "A text."}\n')
    (tmp_path / "q.jsonl").write_text('{"question": "Who?", "golden_answers": ["she"]}\n')
    problem, *servers = problems(tmp_path, **sections)
    assert key in problem and (": " in problem or " needs " in problem)
    # Nor does it hide that the teacher, and a reader with an address of its own, do not answer.
    flags = ["--reader"] if "url" in sections.get("reader", {}) else []
    flags += ["--teacher"] if "teacher" not in sections else []
    assert [server.rpartition("correct ")[2] for server in servers] == flags


def test_a_run_that_has_its_index_goes_on_with_an_encoder_that_it_did_not_use(tmp_path):
    (tmp_path / "out" / "index").mkdir(parents=True)
    done = {"hash": "a", "result": "b", "facts": {}, "seconds": 1.0}
    (tmp_path / "out" / "index" / "done.json").write_text(json.dumps(done))
    found = problems(tmp_path, index={"encoder": "owner/name"}, documents={})
    assert [problem for problem in found if "index.encoder" in problem] == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (None, "cannot be read"),
        ("{documents} Answer.", "has no {question}"),
        ("{question} Answer.", "has no {documents}: write it where the passages belong"),
    ],
)
def test_a_prompt_of_one_search_is_checked_before_anything_is_trained(tmp_path, text, fault):
    prompt = tmp_path / "one_shot.txt"
    if text is not None:
        prompt.write_text(text)
    (tmp_path / "notes.txt").write_text("A text.")
    words = {"one_shot_prompt": str(prompt)}
    [problem] = problems(tmp_path, evaluation=words, teacher={})[1:]
    assert f"evaluation.one_shot_prompt {prompt}" in problem and fault in problem
    assert len(problems(tmp_path, evaluation={**words, "one_shot": False}, teacher={})) == 1


@pytest.mark.slow
def test_the_folder_of_the_documents_is_not_that_of_the_run(tmp_path):
    (tmp_path / "out").mkdir()
    named = problems(tmp_path, documents={"folder": str(tmp_path / "out" / ".." / "out")})
    assert any("documents.folder" in problem and "choose another --out" in problem for problem in named)


def test_a_prompt_of_the_policy_is_named_by_its_key(tmp_path):
    (tmp_path / "notes.txt").write_text("A text.")
    policy = {"model": MODEL, "platform": "cpu", "prompt": str(tmp_path / "none.txt")}
    assert any(problem.startswith("policy.prompt ") for problem in problems(tmp_path, policy=policy))


def test_a_model_that_the_hub_does_not_give_hides_no_other_problem(tmp_path, monkeypatch):
    def refuse(name: str) -> Path:
        raise RunError("no network")

    monkeypatch.setattr("rag_r1.own.artifacts.local_model", refuse)
    (tmp_path / "notes.txt").write_text("A text.")
    recipes = {"grpo": {"recipe": "demo/grpo"}, "sft": {"recipe": "rag_r1/sft/demo"}}
    found = problems(tmp_path, policy={"model": "owner/name", "platform": "cpu"}, **recipes)
    assert found[0] == "no network" and found[1].endswith("--teacher")


@pytest.mark.slow
def test_documents_are_read_with_check_only_also_without_questions_to_write(tmp_path, capsys):
    (tmp_path / "latin.txt").write_bytes("Käse".encode("latin-1"))
    questions = tmp_path / "q.jsonl"
    questions.write_text('{"question": "Who?", "golden_answers": ["she"]}\n')
    words = [str(tmp_path), "--model", MODEL, "--skip", "sft", "--out", str(tmp_path / "out"), "--check-only"]
    words += ["--platform", "cpu", "--questions", str(questions), "--test-questions", str(questions)]
    assert command.main(words) == 1
    assert "latin.txt" in capsys.readouterr().err


@pytest.mark.slow
def test_neither_a_contradiction_nor_a_wrong_key_hides_what_is_wrong_with_files(tmp_path, capsys):
    none, docs = tmp_path / "none", tmp_path / "docs"
    docs.mkdir()
    (docs / "latin.txt").write_bytes("Käse".encode("latin-1"))
    files = ["--model", str(none), "--questions", str(none / "q.jsonl"), "--out", str(tmp_path / "out")]
    for words in [], ["grpo.stepz=3", "traces.samples=x"]:
        assert command.main([str(docs), *files, *words, "--check-only"]) == 1
        message = capsys.readouterr().err
        named = ["teacher.url", "latin.txt", f"{none}/q.jsonl", f"{none} is not the folder of a model"]
        named += [word.partition("=")[0] for word in words]
        assert [name for name in named if name not in message] == []


@pytest.mark.slow
@pytest.mark.parametrize("key", ["index.backend", "grpo.stepz"])
def test_neither_a_wrong_key_nor_a_wrong_override_hides_the_other_overrides(tmp_path, key, capsys):
    words = [f"{key}=bm25", "policy.keys=[rag_r1.nosuch=1]", "sft.overrides=[trainer.nosuch=1]"]
    words += ["--model", MODEL, "--teacher", "http://127.0.0.1:9/v1", "--out", str(tmp_path / "out")]
    assert command.main([str(tmp_path), *words, "--check-only"]) == 1
    message = capsys.readouterr().err
    assert message.count("rag_r1.nosuch: ") == message.count("trainer.nosuch: ") == 1


@pytest.mark.slow
def test_what_is_wrong_with_files_recipes_and_keys_is_reported_together(tmp_path):
    (tmp_path / "notes.txt").write_text("A text.")
    found = "\n".join(
        problems(
            tmp_path,
            policy={"model": str(tmp_path / "none"), "prompt": str(tmp_path / "none.txt"), "platform": "cpu"},
            grpo={"overrides": ["data.train_batch_sise=4", "trainer.default_local_dir=x"]},
        )
    )
    parts = (f"{tmp_path / 'none'} is not the folder of a model", "none.txt", "data.train_batch_sise")
    assert [part for part in (*parts, "trainer.default_local_dir: ") if part not in found] == []


def test_the_teachers_model_is_the_only_one_that_its_server_lists(own: Own, tmp_path):
    plan = read_plan(None, {"teacher": {"url": own.teacher.base}})
    assert with_teacher_name(plan).teacher.model == "scripted"
    named = read_plan(None, {"teacher": {"url": own.teacher.base, "model": "other"}})
    assert with_teacher_name(named) == named
    with OpenAIServer(lambda body: "") as silent:
        with pytest.raises(RunError, match="lists no models: name the teacher's with --teacher-model"):
            with_teacher_name(read_plan(None, {"teacher": {"url": silent.base}}))


def test_own_questions_that_cannot_be_in_one_file_are_refused_before_the_index(tmp_path):
    (tmp_path / "notes.txt").write_text("A text.")
    for name, level in (("a", "easy"), ("b", 3)):
        row = QuestionRow(f"Who is {name}?", ("Ada",), id=name, metadata={"level": level})
        write_rows(tmp_path / f"{name}.parquet", [row])
    files = [str(tmp_path / f"{name}.parquet") for name in "ab"]
    found = problems(tmp_path, questions={"train": files, "test": files[:1]}, sft={"skip": True})
    assert any("extra_info.level has values of several types" in problem for problem in found)


def test_held_out_questions_that_are_trained_on_are_refused_before_the_index(tmp_path):
    (tmp_path / "notes.txt").write_text("A text.")
    files = [str(tmp_path / "a.parquet")]
    write_rows(Path(files[0]), [QuestionRow("Who is a?", ("Ada",), id="a")])
    found = problems(tmp_path, questions={"train": files, "test": files}, sft={"skip": True})
    assert any("1 of its questions are also in questions.train" in problem for problem in found)


@pytest.mark.slow  # composes a recipe
def test_a_recipe_of_another_command_is_named_by_its_flag_and_not_by_keys_that_it_lacks(tmp_path):
    recipes = {"sft": {"recipe": "rag_r1/grpo"}, "grpo": {"recipe": "rag_r1/sft/demo"}}
    found = problems(tmp_path, **recipes)
    assert [text for text in found if "--sft-recipe" in text and "`rag-r1 train`" in text]
    assert [text for text in found if text.startswith("--recipe") and "`rag-r1 sft`" in text]
    assert not [text for text in found if "there is no such key" in text]
