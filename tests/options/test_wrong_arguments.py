"""Beside wrong arguments a command's check sees the right ones, and nothing that follows from the wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import model_validator

from rag_r1.io.unknown_value import UNKNOWN, UnknownValueError
from rag_r1.options.arguments.overrides import CheckedOverrides
from rag_r1.options.command_line import Arguments, Positive, argument, read_arguments
from rag_r1.runs.start_checks import StartChecks


class Post(Arguments):
    letters: list[Path] = argument("what is posted", ("FILE", ...))
    to: Path = argument("where to", "BOX")
    stamps: Positive = argument("on each", default=1)
    weight: float = argument("of each", default=0.02)
    again: bool = argument("twice", default=False)

    @model_validator(mode="after")
    def _light(self) -> Post:
        if self.weight > 1:
            raise ValueError("--weight: at most 1")
        return self


def refused(words: str, capsys, check, cls=Post) -> str:
    with pytest.raises(SystemExit) as ended:
        read_arguments(cls, words.split(), prog="post", description="", check=check)
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_the_check_has_the_right_values_and_the_defaults_of_the_wrong_ones(capsys):
    seen = []
    refused("--letters a b --to box --stamps x --weight 0.5", capsys, seen.append)
    [args] = seen
    assert args.letters == [Path("a"), Path("b")] and args.to == Path("box")
    assert args.stamps == 1 and args.weight == 0.5


def test_the_check_has_the_right_items_of_a_list_with_wrong_ones(capsys, tmp_path):
    class Changed(Post):
        changes: CheckedOverrides = argument("of the letters", "key=value", default=[])

    seen = []
    refused("a=1 novalue b=2 --to b --letters a --letters=", capsys, seen.append, Changed)
    assert seen[0].changes == ["a=1", "b=2"] and seen[0].letters == []
    (tmp_path / "post.yaml").write_text("changes: [c, a=1, d]\n")
    message = refused(f"@{tmp_path / 'post.yaml'} --to b --letters a", capsys, seen.append, Changed)
    assert "changes: 'c' is not" in message and "; 'd' is not" in message and seen[1].changes == ["a=1"]


def test_a_check_that_needs_a_missing_argument_is_left_out_and_the_others_are_made(capsys):
    def check(args):
        assert args.to is UNKNOWN
        with StartChecks() as checks:
            checks.run(Path.read_text, args.to)
            for letter in args.letters:
                checks.run(letter.read_text)
            checks.run(lambda: args.to.exists())

    message = refused("--letters no_letter --stamps x", capsys, check)
    assert "3 problems" in message and "required: --to" in message and "--stamps" in message
    assert "no_letter" in message


def test_stray_words_are_reported_beside_a_missing_argument(capsys):
    message = refused("--stamps 2 stray --stampps 3", capsys, lambda args: None)
    assert "2 problems" in message and "required: --letters, --to" in message
    assert "unrecognized arguments: stray --stampps 3; did you mean --stamps?" in message


def test_a_flag_with_too_few_or_too_many_values_hides_no_other_problem(capsys):
    message = refused("--to --again=yes --letters --stamps x --agai=no", capsys, lambda args: None)
    assert "5 problems" in message and "required" not in message
    assert all(told in message for told in ("--to: ", "'yes'", "'no'", "--letters: ", "--stamps: "))


def test_what_mentions_a_wrong_flag_follows_from_it(capsys):
    def check(args):
        raise ValueError(f"{args.stamps} is too few --stamps")

    assert "problems" not in refused("--letters a --to b --stamps x", capsys, check)


def test_a_contradiction_is_reported_beside_a_wrong_value(capsys):
    message = refused("--letters a --to b --stamps x --weight 3", capsys, lambda args: None)
    assert "--weight: at most 1" in message and "--stamps" in message


def test_a_check_that_breaks_for_want_of_a_value_is_no_problem(capsys):
    assert "problems" not in refused("--letters a", capsys, lambda args: {}["no such key"])


def test_right_arguments_are_not_checked_here():
    words = ["--letters", "a", "--to", "b"]
    args = read_arguments(Post, words, description="", check=lambda args: pytest.fail("is checked"))
    assert args.changed(to=Path("c")).to == Path("c")


ORDER = [lambda value: value < 1, lambda value: 1 <= value, lambda value: value > 1, lambda value: value[0]]


@given(
    st.sampled_from(
        [str, int, float, len, iter, bool, Path, lambda value: value / "x", lambda value: value.x]
        + [range, lambda value: value + 1, lambda value: 1 - value, lambda value: 2 * value, *ORDER]
    )
)
def test_nothing_can_be_done_with_a_value_that_is_not_known(use):
    with pytest.raises(UnknownValueError):
        use(UNKNOWN)
