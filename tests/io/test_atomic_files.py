"""Files are written as a whole or not at all, and a disk that cannot be written is told with its file."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from rag_r1.io.atomic_files import atomic_file, write_json, write_json_lines, write_lines, write_text
from rag_r1.io.errors import error_text, is_disk_error
from rag_r1.options.subcommands import run

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="left out: there is no /dev/full here")


def test_a_file_is_replaced_when_its_block_ends_and_left_when_it_fails(tmp_path):
    path = tmp_path / "a.txt"
    with atomic_file(path) as part:
        part.write_text("one")
        assert not path.exists()
    with pytest.raises(KeyError), atomic_file(path) as part:
        part.write_text("two")
        raise KeyError
    assert path.read_text() == "one" and list(tmp_path.iterdir()) == [path]


def test_a_folder_is_written_as_a_whole_too(tmp_path):
    with pytest.raises(KeyError), atomic_file(tmp_path / "model") as part:
        part.mkdir()
        (part / "weights").write_text("w")
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    with atomic_file(tmp_path / "model") as part:
        part.mkdir()
        (part / "weights").write_text("w")
    assert (tmp_path / "model" / "weights").read_text() == "w"


def test_the_part_of_a_folder_that_a_kill_has_left_is_in_nobodys_way(tmp_path):
    (tmp_path / "model.part" / "old").mkdir(parents=True)
    with atomic_file(tmp_path / "model") as part:
        part.mkdir()
    assert not list((tmp_path / "model").iterdir())


@needs_full
def test_a_full_disk_is_told_with_the_file_and_leaves_no_part(tmp_path):
    path = tmp_path / "a.txt"
    with pytest.raises(OSError) as full, atomic_file(path) as part:
        part.symlink_to(FULL)
        part.write_text("one")
    assert error_text(full.value) == (
        f"cannot use {path}: No space left on device; make room on that disk, or choose another folder, and "
        "run the same command again"
    )
    assert list(tmp_path.iterdir()) == []


#: A process of its own, none of whose files may grow above 2,000 bytes: pytest's own output is not limited.
SMALL_FILES = """
import resource, sys
from pathlib import Path
from rag_r1.protocols import load_protocol
from rag_r1.data.rows import QuestionRow, RowWriter, write_rows
from rag_r1.io.errors import error_text

protocol, folder = load_protocol("rag_r1_mq"), Path(sys.argv[1])
rows = []
for number in range(200):
    text = f"Who is {number}? " * 20
    prompt = tuple(protocol.messages(text))
    rows.append(
        QuestionRow(text, ("nobody",), prompt, f"q{number}", protocol=protocol.name, index=number)
    )
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))

def told(write, *args):
    try:
        write(*args)
    except OSError as error:
        print(error_text(error))

def one_by_one(path):
    with RowWriter(path) as writer:
        for row in rows:
            writer.add(row)

told(write_rows, folder / "a.parquet", rows)
told(one_by_one, folder / "b.parquet")
told(one_by_one, folder / "none" / "b.parquet")
"""


def test_parquet_files_that_do_not_fit_are_told_too(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SMALL_FILES, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.stderr == ""
    first, second, third = done.stdout.splitlines()
    assert f"cannot use {tmp_path / 'a.parquet'}: File too large" in first
    assert f"cannot use {tmp_path / 'b.parquet'}: File too large" in second
    assert "No such file or directory" in third
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
    said = error_text(OSError(number, "x", "out/report.md"))
    assert said.startswith("cannot use out/report.md: ") and remedy in said and "Errno" not in said


def test_other_errors_are_told_as_they_are():
    missing = FileNotFoundError(errno.ENOENT, "No such file", "q.jsonl")
    assert error_text(missing) == str(missing) and not is_disk_error(missing)
    assert error_text(ValueError("what")) == "what"


def test_a_command_that_knows_nothing_of_disks_ends_with_a_sentence(monkeypatch, capsys):
    def fail(_: object) -> int:
        raise OSError(errno.EROFS, "x", "/data/out")

    monkeypatch.setattr(
        "rag_r1.options.subcommands.import_module", lambda name: type("M", (), {"main": fail})
    )
    assert run("rag-r1", "", {"x": ("m", "")}, ["x"]) == 1
    assert "error: cannot use /data/out: Read-only file system" in capsys.readouterr().err


def test_the_forms_of_text_files(tmp_path: Path):
    path, value = tmp_path / "file", {"name": "Köln"}
    write_json(path, value)
    assert path.read_bytes() == b'{\n  "name": "K\\u00f6ln"\n}\n'
    write_json(path, value, ensure_ascii=False)
    assert path.read_bytes() == '{\n  "name": "Köln"\n}\n'.encode()
    assert write_json_lines(path, (value for _ in range(2)), durable=True) == 2
    assert path.read_bytes() == ('{"name": "Köln"}\n' * 2).encode()
    write_text(path, "half \ud83d\n")
    assert path.read_bytes() == b"half \\ud83d\n"
    with pytest.raises(UnicodeEncodeError):
        write_lines(path, ["half \ud83d\n"])
    assert path.read_bytes() == b"half \\ud83d\n"


def test_a_private_file_is_for_its_owner_only_and_keeps_what_a_policy_wrote(tmp_path: Path):
    path = tmp_path / "file"
    write_text(path, "half \ud83d\n", private=True)
    assert path.read_bytes() == b"half \xed\xa0\xbd\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_part_that_a_kill_has_left_gives_a_private_file_neither_its_rights_nor_its_target(tmp_path: Path):
    path, part, target = tmp_path / "file", tmp_path / "file.part", tmp_path / "target"
    part.write_text("left")
    part.chmod(0o644)
    write_text(path, "one", private=True)
    assert path.stat().st_mode & 0o777 == 0o600
    target.write_text("its own")
    part.symlink_to(target)
    write_text(path, "two", private=True)
    assert (path.is_symlink(), path.read_text(), target.read_text()) == (False, "two", "its own")
