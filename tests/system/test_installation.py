"""What a message advises to install: a clone's scripts, or pip with what this installation came from."""

from __future__ import annotations

import json
from importlib import metadata

import pytest

from rag_r1.system import installation
from rag_r1.system.installation import flash_attn_command, pip_command, remedy_for, require, setup_command


@pytest.fixture
def from_a_wheel(monkeypatch, tmp_path):
    """An installation without a clone; its origin, as pip records it, is the argument."""

    def installed(origin: dict | None) -> None:
        folder = tmp_path / "rag_r1-0.1.0.dist-info"
        folder.mkdir(exist_ok=True)
        (folder / "METADATA").write_text("Name: rag-r1\nVersion: 0.1.0\n")
        if origin is not None:
            (folder / "direct_url.json").write_text(json.dumps(origin))
        monkeypatch.setattr(metadata, "distribution", lambda _: metadata.Distribution.at(folder))
        monkeypatch.setattr(installation, "clone", lambda: None)
        installation._source.cache_clear()

    yield installed
    installation._source.cache_clear()


def test_a_clone_has_a_script(monkeypatch):
    assert installation.clone() is not None
    assert setup_command() == "bash scripts/setup_env.sh"
    assert setup_command("gpu") == flash_attn_command() == "RAG_R1_PLATFORM=gpu bash scripts/setup_env.sh"
    assert pip_command("mcp") == 'pip install -e ".[mcp]"'


def test_from_an_index_the_extra_is_named(from_a_wheel):
    from_a_wheel(None)
    assert pip_command("documents", "graph") == 'pip install "rag-r1[documents,graph]"'
    assert pip_command() == 'pip install "rag-r1"'
    assert flash_attn_command() == 'pip install "rag-r1[flash-attn]" --no-build-isolation'


@pytest.mark.parametrize(("revision", "at"), [(None, ""), ("v1", "@v1")])
def test_from_a_repository_the_extra_comes_from_there(from_a_wheel, revision, at):
    vcs = {"vcs": "git", "commit_id": "abc", **({"requested_revision": revision} if revision else {})}
    from_a_wheel({"url": "https://example.org/rag-r1.git", "vcs_info": vcs})
    assert pip_command("mcp") == f'pip install "rag-r1[mcp] @ git+https://example.org/rag-r1.git{at}"'


def test_from_a_file_the_extra_comes_from_it_while_it_is_there(from_a_wheel, tmp_path):
    wheel = tmp_path / "it is here" / "rag_r1.whl"
    from_a_wheel({"url": wheel.as_uri(), "archive_info": {}})
    assert pip_command("mcp") == 'pip install "rag-r1[mcp]"'
    wheel.parent.mkdir()
    wheel.touch()
    installation._source.cache_clear()
    assert pip_command("mcp") == f'pip install "rag-r1[mcp] @ {wheel.as_uri()}"'


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_what_a_training_needs_is_installed_for_the_platform(from_a_wheel, monkeypatch, platform):
    from_a_wheel(None)
    monkeypatch.setenv("RAG_R1_PLATFORM", platform)
    assert setup_command() == f'pip install "rag-r1[{platform}]"'
    assert remedy_for("omegaconf.errors", "rag-r1 recipes") == f'pip install "rag-r1[{platform}]"'
    assert remedy_for("torch", "rag-r1 demo") == f'pip install "rag-r1[{platform}]"'


def test_a_module_is_of_an_extra_or_of_none(from_a_wheel):
    from_a_wheel(None)
    assert remedy_for("fastapi", "rag-r1 serve") == 'pip install "rag-r1[bm25]"'
    assert remedy_for("torch", "rag-r1 serve") == 'pip install "rag-r1[retrieval]"'
    assert remedy_for("transformers", "rag-r1 retriever train") == 'pip install "rag-r1[retriever]"'
    assert remedy_for("my_rewards", "rag-r1 train") is None


def test_every_extra_that_is_advised_is_declared():
    declared = set(metadata.metadata("rag-r1").get_all("Provides-Extra"))
    advised = {*installation._MODULES, *installation._COMMANDS.values()} - {installation._TRAINING}
    assert advised | {"cpu", "gpu", "flash-attn"} <= declared


def test_what_only_another_process_imports_is_required_by_name():
    require("json", "rag_r1")
    with pytest.raises(ModuleNotFoundError) as error:
        require("json", "no_such_module")
    assert error.value.name == "no_such_module"
