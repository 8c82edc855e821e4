"""A tokenizer that is named by the Hub: without a network only the cache is asked, and that is told soon."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rag_r1.demo.policy import policy_path
from rag_r1.inference.tokenizer import check_vocabulary, load_tokenizer
from rag_r1.io.hub import hub_answers
from rag_r1.rollouts.engine_factory import TokenUnit
from rag_r1.runs.errors import RunError

pytestmark = pytest.mark.slow  # imports transformers


class Session:
    """A connection to the Hub that is there or not, and what it was asked."""

    def __init__(self, answers: bool):
        self.answers, self.asked = answers, []

    def head(self, url: str, timeout: float) -> None:
        self.asked.append(url)
        if not self.answers:
            raise OSError("Name or service not known")


@pytest.fixture
def hub(monkeypatch):
    """Makes the Hub answer or not, and transformers find no tokenizer; gives the session and its keywords."""
    from huggingface_hub import constants, utils
    from transformers import AutoTokenizer

    def make(answers: bool) -> tuple[Session, list[dict]]:
        session, loads = Session(answers), []

        def refused(name: str, **keywords: object) -> None:
            loads.append(keywords)
            raise OSError("not in the cached files")

        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(utils, "get_session", lambda: session)
        monkeypatch.setattr(AutoTokenizer, "from_pretrained", refused)
        return session, loads

    return make


@pytest.mark.parametrize("answers", [False, True])
def test_a_name_is_looked_up_in_the_cache_alone_if_the_hub_does_not_answer_one_request(hub, answers):
    session, loads = hub(answers)
    with pytest.raises(OSError):
        load_tokenizer("our/model")
    assert len(session.asked) == 1 and [load["local_files_only"] for load in loads] == [not answers]


def test_the_hub_is_not_asked_about_a_folder_nor_where_it_is_switched_off(hub, tmp_path: Path, monkeypatch):
    from huggingface_hub import constants

    session, loads = hub(True)
    with pytest.raises(OSError):
        load_tokenizer(str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert not hub_answers() and session.asked == [] and loads[0]["local_files_only"] is False


@pytest.mark.parametrize("name", ["policy", "our/own/model", "/our/model"])
def test_a_name_that_is_no_folder_and_lacks_the_form_of_the_hub_is_not_looked_up(hub, name):
    session, loads = hub(True)
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        load_tokenizer(name)
    assert session.asked == loads == []


def test_a_name_without_a_tokenizer_is_told_with_the_flag_that_takes_a_folder(hub):
    hub(False)
    with pytest.raises(RunError) as raised:
        TokenUnit.of("our/model")
    assert "our/model" in str(raised.value) and "give --tokenizer a folder" in str(raised.value)


def test_a_model_whose_tokenizer_was_not_copied_is_refused(tmp_path: Path):
    """transformers makes a tokenizer without tokens of its config.json alone."""
    shutil.copytree(policy_path("rag_r1_mq"), tmp_path / "model", ignore=shutil.ignore_patterns("tokenizer*"))
    with pytest.raises(RunError, match="cannot be loaded: the folder holds no tokenizer"):
        TokenUnit.of(str(tmp_path / "model"))


def test_a_model_needs_an_embedding_for_each_id_of_a_text_and_none_for_other_special_tokens(tmp_path: Path):
    tokenizer = load_tokenizer(str(policy_path("rag_r1_mq")))
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": len(tokenizer)}))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    check_vocabulary(tokenizer, tmp_path)
    tokenizer.add_tokens(["<new>"])
    with pytest.raises(RunError, match="resize_token_embeddings"):
        check_vocabulary(tokenizer, tmp_path)
