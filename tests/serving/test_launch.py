"""What is started for a chat."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rag_r1.demo.chat import examples_of, last_demo_run
from rag_r1.demo.world import demo_protocol, write_demo
from rag_r1.runs.errors import RunError
from rag_r1.serving.arguments import ServeArguments
from rag_r1.serving.launch import launch_agent
from rag_r1.serving.page import model_name
from rag_r1.tools.documents.corpus import MADE_FROM, index_folder
from tests.serving.running_chat import arguments, chat_server, policy_of, question


def run_at(folder: Path, age_s: float, step: int = 18) -> Path:
    """What a demo run leaves behind, as far as it matters here."""
    model = folder / "checkpoints" / f"global_step_{step}" / "actor" / "huggingface"
    model.mkdir(parents=True)
    (folder / "index").mkdir()
    (model / "model.safetensors").touch()
    os.utime(model / "model.safetensors", (1e9 - age_s, 1e9 - age_s))
    (folder / "checkpoints" / "latest_checkpointed_iteration.txt").write_text(str(step))
    return model


def test_the_newest_demo_run_with_a_policy_is_served(tmp_path):
    assert last_demo_run(tmp_path) is None
    run_at(tmp_path / "grpo", age_s=10)
    newest = run_at(tmp_path / "ppo_sq", age_s=5)
    run_at(tmp_path / "of_no_recipe", age_s=1)
    (run_at(tmp_path / "ppo_mq", age_s=1) / "model.safetensors").unlink()
    run = last_demo_run(tmp_path)
    assert (run.folder.name, run.model, run.protocol) == ("ppo_sq", newest, "rag_r1_sq")


def test_the_questions_of_a_demo_run_are_suggested(tmp_path):
    run_at(tmp_path / "grpo", age_s=1)
    data = write_demo(tmp_path / "grpo" / "data", demo_protocol("rag_r1_mq"), seed=3, train=1, val=8)
    questions = last_demo_run(tmp_path).questions()
    assert [row.question for row in questions] == [question.text for question in data.val]
    kinds = [example.kind for example in examples_of(questions)]
    assert len(kinds) == 8 and kinds == sorted(kinds, key=list(dict.fromkeys(kinds)).index)  # by kind


def arguments_of(out: Path, **options) -> ServeArguments:
    return ServeArguments(**{"model": "m", "base_url": "http://127.0.0.1:9/v1", "out": out, **options})


def test_two_chats_do_not_share_a_folder(tmp_path):
    with policy_of() as policy:
        args = arguments_of(tmp_path, engine="chat", base_url=f"{policy.url}/v1")
        with launch_agent(args), pytest.raises(RunError, match="another --out"), launch_agent(args):
            pass


def test_what_else_is_in_the_folder_for_logs_is_not_deleted(tmp_path):
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "of_another").touch()
    (tmp_path / "notes").mkdir()
    args = arguments_of(tmp_path, documents=tmp_path / "notes")
    with pytest.raises(RunError, match="--documents"), launch_agent(args):
        pass
    assert (tmp_path / "index" / "of_another").exists()


def test_a_file_that_cannot_be_read_is_named_with_the_flag_that_leaves_it_out(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "latin.txt").write_bytes("Käse".encode("latin-1"))
    args = arguments_of(tmp_path / "new" / "out", documents=tmp_path / "notes")
    with pytest.raises(RunError, match=r"(?s)--skip-bad-files.*latin.txt"), launch_agent(args):
        pass
    assert not (tmp_path / "new" / "out").exists(), "no empty folder is left"


def test_no_lock_file_is_left_in_the_folder_of_a_chat_or_of_its_documents(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("Paris lies on the Seine.")
    index_folder(tmp_path / "notes", tmp_path / "corpus", progress=False)
    assert {path.name for path in (tmp_path / "corpus").iterdir()} == {"corpus.jsonl", MADE_FROM}
    (tmp_path / "empty").mkdir()
    args = arguments_of(tmp_path / "chat", documents=tmp_path / "empty")
    with pytest.raises(RunError), launch_agent(args):
        pass
    assert [path.name for path in tmp_path.rglob("*") if "lock" in path.name] == []


def test_a_model_in_the_working_directory_has_the_name_of_that_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert model_name(".") == (tmp_path.name, None)


@pytest.mark.full
@pytest.mark.slow
def test_a_folder_of_documents_is_searched(tmp_path, monkeypatch):
    documents = tmp_path / "notes"
    documents.mkdir()
    monkeypatch.chdir(documents)
    (documents / "mara.md").write_text("# Mara Torval\n\nThe painter Mara Torval was born in Karlen Ford.\n")
    (documents / "tito.txt").write_text("Tito Vesmer was a doctor in Zantis Mill.\n")
    (documents / "latin.txt").write_bytes("Käse".encode("latin-1"))
    with policy_of() as policy:
        args = arguments(policy.url, tmp_path / "out", documents=Path(), skip_bad_files=True)
        with launch_agent(args) as place:
            assert place.about.what == "the documents in notes"
            served = args.model_copy(update={"retriever_url": place.evaluation.retriever_url})
            with chat_server(served, place.about) as chat:
                details = chat.post(question()).json()["rag_r1"]
    [call] = details["searches"]
    assert "Mara Torval was born in Karlen Ford" in call["documents"][0]["text"]
    assert details["citations"][0]["id"] == call["documents"][0]["id"]
