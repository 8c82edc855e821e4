"""Files are written as a whole or not at all, and a disk that cannot be written is told with its file."""

from __future__ import annotations

import errno
import resource
from pathlib import Path

import pytest

from rag_r1.protocols import load_protocol
from rag_r1.rows import QuestionRow, RowWriter, write_rows
from rag_r1.subcommands import run
from rag_r1.whole_files import in_words, is_fault_of_the_disk, whole_file

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="left out: there is no /dev/full here")


def test_a_file_is_replaced_when_its_block_ends_and_left_when_it_fails(tmp_path):
    path = tmp_path / "a.txt"
    with whole_file(path) as part:
        part.write_text("one")
        assert not path.exists()
    with pytest.raises(KeyError), whole_file(path) as part:
        part.write_text("two")
        raise KeyError
    assert path.read_text() == "one" and list(tmp_path.iterdir()) == [path]


def test_a_folder_is_written_as_a_whole_too(tmp_path):
    with pytest.raises(KeyError), whole_file(tmp_path / "model") as part:
        part.mkdir()
        (part / "weights").write_text("w")
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    with whole_file(tmp_path / "model") as part:
        part.mkdir()
        (part / "weights").write_text("w")
    assert (tmp_path / "model" / "weights").read_text() == "w"


@needs_full
def test_a_full_disk_is_told_with_the_file_and_leaves_no_part(tmp_path):
    path = tmp_path / "a.txt"
    (tmp_path / "a.txt.part").symlink_to(FULL)
    with pytest.raises(OSError) as full, whole_file(path) as part:
        part.write_text("one")
    assert in_words(full.value) == (
        f"cannot use {path}: No space left on device; make room on that disk, or choose another folder, and "
        "run the same command again"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_files():
    """No file of this process may grow above 2,000 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def question(number: int) -> QuestionRow:
    protocol = load_protocol("rag_r1_mq")
    text = f"Who is {number}? " * 20
    prompt = protocol.messages(text)
    return QuestionRow(text, ("nobody",), tuple(prompt), f"q{number}", protocol=protocol.name, index=number)


def test_parquet_files_that_do_not_fit_are_told_too(tmp_path, small_files):
    rows = [question(number) for number in range(200)]
    with pytest.raises(OSError) as full:
        write_rows(tmp_path / "a.parquet", rows)
    assert f"cannot use {tmp_path / 'a.parquet'}: File too large" in in_words(full.value)
    with pytest.raises(OSError) as full, RowWriter(tmp_path / "b.parquet") as writer:
        for row in rows:
            writer.add(row)
    assert f"cannot use {tmp_path / 'b.parquet'}: File too large" in in_words(full.value)
    with pytest.raises(OSError), RowWriter(tmp_path / "none" / "b.parquet"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "make room"),
        (errno.EDQUOT, "make room"),
        (errno.EROFS, "check the rights"),
        (errno.EACCES, "check the rights"),
    ],
)
def test_what_the_disk_does_not_allow_has_a_remedy(number, remedy):
    said = in_words(OSError(number, "x", "out/report.md"))
    assert said.startswith("cannot use out/report.md: ") and remedy in said and "Errno" not in said


def test_other_errors_are_told_as_they_are():
    missing = FileNotFoundError(errno.ENOENT, "No such file", "q.jsonl")
    assert in_words(missing) == str(missing) and not is_fault_of_the_disk(missing)
    assert in_words(ValueError("what")) == "what"


def test_a_command_that_knows_nothing_of_disks_ends_with_a_sentence(monkeypatch, capsys):
    def fail(_: object) -> int:
        raise OSError(errno.EROFS, "x", "/data/out")

    monkeypatch.setattr("rag_r1.subcommands.import_module", lambda name: type("M", (), {"main": fail}))
    assert run("rag-r1", "", {"x": ("m", "")}, ["x"]) == 1
    assert "error: cannot use /data/out: Read-only file system" in capsys.readouterr().err
