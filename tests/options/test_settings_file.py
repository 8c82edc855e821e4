"""Settings from a file: flags replace them, and what is wrong is told by key with the file's name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import model_validator
from pydantic_settings import CliPositionalArg

from rag_r1.options.arguments.overrides import Overrides
from rag_r1.options.command_line import Arguments, Positive, argument, read_arguments
from rag_r1.options.server_address import Address
from rag_r1.runs.start_checks import StartError


class Play(Arguments):
    questions: list[Path] = argument("what is asked", "FILE", old="data")
    out: Path = argument("folder", "DIR")
    samples: Positive = argument("of each", default=1)
    sizes: tuple[str, str] = argument("of answers", ("LEAST", "MOST"), default=("s", "l"))
    card: bool = argument("with a card", default=False)
    no_bar: bool = argument("without a bar", default=False)
    url: Address | None = argument("of the server", default=None)
    overrides: Overrides = argument("anything else", "key=value", default=[])

    @model_validator(mode="after")
    def _one_card(self) -> Play:
        if self.card and self.samples > 1:
            raise ValueError("--card is for --samples 1")
        return self


def play(*words: str) -> Play:
    return read_arguments(Play, words, prog="play", description="Play.")


def settings(folder: Path, text: str, name: str = "run.yaml") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return f"@{folder / name}"


def test_flags_replace_the_settings_of_a_file_and_overrides_follow_its_own(tmp_path):
    file = settings(
        tmp_path, "data: q.jsonl\nout: a\nsamples: 3\nsizes: [m, x]\noverrides: [a=1]\nurl: null\n"
    )
    made = play(file, "--out", "b", "c=2")
    assert (made.questions, made.out, made.samples) == ([Path("q.jsonl")], Path("b"), 3)
    assert made.sizes == ("m", "x") and made.overrides == ["a=1", "c=2"]
    assert play("d=1", "--questions=p", file).questions == [Path("p")]
    assert play("--samples", "2", file).samples == 2


def test_what_a_file_switches_on_can_be_switched_off(tmp_path):
    file = settings(tmp_path, "questions: [q]\nout: a\ncard: true\n")
    assert play(file).card is True
    assert play(file, "--no-card").card is False


def test_later_files_come_before_earlier_ones_and_json_is_read_too(tmp_path):
    first = settings(tmp_path, "questions: [q]\nsamples: 2\noverrides: [a=1]\n")
    second = settings(tmp_path, json.dumps({"samples": 4, "out": "o", "overrides": ["b=1"]}), "own.json")
    made = play(first, second)
    assert (made.samples, made.out, made.overrides) == (4, Path("o"), ["a=1", "b=1"])


class Copy(Arguments):
    name: CliPositionalArg[str] = argument("what is copied", "NAME")
    to: CliPositionalArg[Path] = argument("a new file", "FILE")


def test_positional_arguments_of_one_value_are_read_and_written_as_whole_words(tmp_path):
    file = settings(tmp_path, "to: a/copy\nname: recipe\n")
    made = read_arguments(Copy, [file], prog="copy", description="Copy.")
    assert made == Copy(name="recipe", to=Path("a/copy")) and made.to_argv() == ["recipe", "a/copy"]


def test_a_folder_in_place_of_a_file_of_settings_is_named(tmp_path, capsys):
    settings(tmp_path, "samples: 2\n", "settings.yaml")
    with pytest.raises(SystemExit):
        play(f"@{tmp_path}")
    assert f"@{tmp_path} is a folder: give its file of settings" in capsys.readouterr().err


@pytest.mark.parametrize(
    "before", [[], ["--card"], ["--no-card"], ["--no-bar"], ["--samples=2"], ["--samples", "2"]]
)
def test_a_run_that_does_not_exist_is_named_before_missing_flags_are(before, tmp_path, capsys):
    with pytest.raises(SystemExit):
        play(*before, f"@{tmp_path / 'none'}")
    said = capsys.readouterr().err
    assert f"there is no file or run '{tmp_path / 'none'}'" in said and "@RUN/settings.yaml" in said


def test_a_value_that_begins_with_an_at_sign_is_no_file_of_settings():
    assert play("--questions", "@q", "--out", "@o").out == Path("@o")


def test_a_folder_without_settings_is_named_with_what_is_expected(tmp_path, capsys):
    with pytest.raises(SystemExit):
        play(f"@{tmp_path}")
    assert f"@{tmp_path} is a folder without settings.yaml, " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("sample: 3\n", "unknown key sample: did you mean samples?"),
        ("samples: 0\n", "samples: must be a whole number of at least 1, not '0'"),
        ("samples: true\n", "samples: must be a whole number of at least 1, not True"),
        ("card: 'yes'\n", "card: must be true or false, not 'yes'"),
        ("samples: 0\nout: {a: 1}\n", "out: must be a path"),
        ("url: http://me:secret@host\n", "url: must be an http(s) address"),
        ("samples: 1\nsamples-: 1\n", "unknown key samples_"),
        ("sample: 3\ncard: 1\nurl: x\n", "card: must be true or false, not 1"),
        ("sample: 3\nsamples: 0\n", "unknown key sample: did you mean samples?"),
        ("sample: 3\nsamples: 0\n", "samples: must be a whole number of at least 1"),
        ("rag_r1.agent.max_turns: 3\n", "and `overrides`, a list of key=value"),
        ("sample: null\n", "unknown key sample: did you mean samples?"),
        ("data: a\nquestions: b\n", "questions: given twice"),
        ("[1]", "must be a mapping"),
        ("a: [", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_wrong_settings_are_refused_by_key_with_the_name_of_the_file(tmp_path, capsys, text, told):
    file = f"@{tmp_path / 'run.yaml'}" if text is None else settings(tmp_path, text)
    with pytest.raises(SystemExit) as end:
        play(file, "--questions", "q", "--out", "o")
    said = capsys.readouterr().err
    assert end.value.code == 2 and "run.yaml" in said and told in said and "secret" not in said


def test_wrong_settings_of_a_file_are_told_one_by_one_and_hide_nothing_else(tmp_path, capsys):
    def check(args: Play) -> None:
        problems = [f"--questions {path}: no such file" for path in args.questions]
        if args.url is None:
            problems.append("give --url")
        raise StartError([*problems, f"--out {args.out}: is a file"])

    text = "questions: no.jsonl\nout: afile\nurl: [true]\nsample: 2\nheat: 3\ncard: maybe\nsamples: 0\n"
    file = settings(tmp_path, text)
    with pytest.raises(SystemExit):
        read_arguments(Play, [file], prog="play", description="Play.", check=check)
    lines = capsys.readouterr().err.splitlines()
    told = [line.removeprefix("  - ") for line in lines if line.startswith("  - ")]
    wrong = ("unknown key sample:", "unknown key heat:", "url: must", "card: must", "samples: must")
    starts = [*(f"{file[1:]}: {start}" for start in wrong), "--questions no.jsonl:", "--out afile: is"]
    assert [line[: len(start)] for line, start in zip(told, starts, strict=True)] == starts


def test_what_contradicts_each_other_is_told_after_the_flags_are_read(tmp_path, capsys):
    file = settings(tmp_path, "questions: q\nout: o\ncard: true\nsamples: 2\n")
    assert play(file, "--samples", "1").card
    with pytest.raises(SystemExit):
        play(file)
    assert "--card is for --samples 1" in capsys.readouterr().err


def test_a_value_that_looks_like_a_file_of_settings_is_joined_to_its_flag():
    assert play("--out=@a.yaml", "--questions=q").out == Path("@a.yaml")


def test_the_help_tells_of_files(capsys):
    with pytest.raises(SystemExit):
        play("--help")
    assert "@FILE.yaml" in capsys.readouterr().out
