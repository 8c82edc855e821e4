"""Texts from outside are printed without what a terminal would obey."""

import os
import subprocess
import sys

import pytest

from rag_r1.io.terminal_text import has_control_characters, print_error, terminal_lines, terminal_text

HOSTILE = "a\x1b[31mb\x07c\rd\u202ee\u200bf\x9bg\u2028h\ud800i\ue000j"


def test_a_text_becomes_one_line_that_controls_nothing():
    shown = terminal_text(HOSTILE + "\n\tk")
    assert not has_control_characters(shown) and "\n" not in shown and shown.endswith("j k")
    assert terminal_text("Grüße, 北京, नमस्ते, 👍") == "Grüße, 北京, नमस्ते, 👍"
    assert terminal_text("x" * 1000) == "x" * 197 + "..." and terminal_text(" " * 999 + "y") == "..."


def test_a_message_of_several_lines_keeps_its_lines_and_their_spaces(capsys):
    print_error(ValueError(f"two files:\n  {HOSTILE}\n  b  c"))
    told = capsys.readouterr().err.split("\n")
    assert (
        told[0] == "error: two files:" and told[2:] == ["  b  c", ""] and not has_control_characters(told[1])
    )
    assert len(terminal_lines("x" * 5000)) == 2000


@pytest.mark.slow
def test_a_terminal_that_is_not_utf_8_gets_escapes(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("text")
    out = tmp_path / "K\xe4se \x1b[31m"
    command = [sys.executable, "-m", "rag_r1.cli", "documents", "--folder", str(tmp_path / "docs"), "--out"]
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*command, os.fsencode(out)], env=os.environ | ascii_only, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii() and b"1 passages: " in done.stdout and b"\\ufffd[31m" in done.stdout
