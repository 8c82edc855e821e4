"""Arguments are declared once: flags, help, checks and messages follow, and only the command line is read."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import model_validator
from pydantic_settings import CliPositionalArg

from rag_r1.options.arguments.errors import ArgumentsError
from rag_r1.options.arguments.overrides import CheckedOverrides, Overrides
from rag_r1.options.command_line import Arguments, Positive, argument, read_arguments, with_defaults


class Bake(Arguments):
    recipe: list[str] = argument("what is baked, in order", "RECIPE")
    out: Path | None = argument("folder (default: the table)", "DIR", default=None)
    loaves: Positive = argument("how many, 100% of them", default=1)
    heat: float = argument("of the oven", "CELSIUS", default=220)
    grain: Literal["rye", "wheat"] = argument("of the flour", default="rye")
    two_times: bool = argument("bake again", default=False)
    own_oven: str | None = argument("another oven", default=None, flag="2nd-oven")
    sizes: tuple[str, str] = argument("of loaves", ("LEAST", "MOST"), default=("s", "l"))
    guests: list[Path] = argument("who eats", ("GUEST", ...), default=[])
    overrides: Overrides = argument("anything else", "key=value", default=[])

    @model_validator(mode="after")
    def _wheat_is_baked_once(self) -> Bake:
        if self.grain == "wheat" and self.two_times:
            raise ValueError("--two-times is for rye, not for --grain wheat")
        return self


def bake(*arguments: str, cls: type = Bake):
    return read_arguments(
        cls, arguments, prog="bake", description="Bake.\n\n    as written", epilog="The end."
    )


def refusal(capsys, *arguments: str, cls: type = Bake) -> str:
    with pytest.raises(SystemExit) as end:
        bake(*arguments, cls=cls)
    assert end.value.code == 2
    told, where = capsys.readouterr().err.splitlines()
    assert where == "see bake --help"
    return told


def test_flags_repeated_flags_and_overrides_may_stand_in_any_order():
    made = bake("a=[1,2]", "--recipe", "one,two", "b={c: 'd'}", "--two-times", "--recipe=null", "+e=")
    assert made.recipe == ["one,two", "null"] and made.two_times
    assert made.overrides == ["a=[1,2]", "b={c: 'd'}", "+e="]
    assert (made.out, made.loaves, made.heat, made.grain, made.sizes) == (None, 1, 220, "rye", ("s", "l"))


def test_values_have_their_types_and_none_is_a_word_like_any_other():
    made = bake("--recipe", "x", "--out", "None", "--loaves", "7", "--heat", "1e2", "--2nd-oven", "null")
    assert (made.out, made.loaves, made.heat, made.own_oven) == (Path("None"), 7, 100.0, "null")
    assert bake("--recipe", "x", "--sizes", "a,b", "c").sizes == ("a,b", "c")


def test_a_flag_may_take_one_or_more_values_and_be_given_again():
    made = bake("--recipe", "x", "--guests", "a,b", "c", "--heat", "9", "--guests", "d")
    assert made.guests == [Path("a,b"), Path("c"), Path("d")]
    assert bake("--recipe", "x").guests == []


words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
values = words.filter(lambda word: not word.startswith("-"))
# A word on its own that begins with @ is a file of settings (test_settings_file.py).
alone = values.filter(lambda word: not word.startswith("@"))


@given(st.lists(values, min_size=1, max_size=3), st.lists(alone, max_size=3), values)
@example(["@", "@x"], ["a@b"], "@")
def test_whatever_is_given_arrives_as_it_was_written(recipes, overrides, out):
    flags = [word for recipe in recipes for word in ("--recipe", recipe)]
    made = bake(*overrides[:1], *flags, "--2nd-oven", out, *overrides[1:])
    assert (made.recipe, made.overrides, made.own_oven) == (recipes, overrides, out)


def test_no_environment_variable_and_no_file_is_read(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("recipe=x\nRECIPE=x\nloaves=5\n")
    for name in ("recipe", "RECIPE", "loaves", "LOAVES", "grain", "OVERRIDES"):
        monkeypatch.setenv(name, "9")
    assert bake("--recipe", "x").loaves == 1
    assert "arguments are required: --recipe" in refusal(capsys)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("--loaves many", "argument --loaves: must be a whole number of at least 1, not 'many'"),
        ("--loaves 0", "argument --loaves: must be a whole number of at least 1, not '0'"),
        ("--heat hot", "argument --heat: must be a number, not 'hot'"),
        ("--grain oats", "argument --grain: must be rye or wheat, not 'oats'"),
        ("--grain wheat --two-times", "--two-times is for rye, not for --grain wheat"),
        ("--loafs 3", "unrecognized arguments: --loafs"),
        ("--sizes s", "argument --sizes: expected 2 arguments"),
        ("--two-times=yes", "argument --two-times: it takes no value: leave out 'yes'"),
    ],
)
def test_a_wrong_argument_ends_the_command_with_one_sentence(capsys, wrong, told):
    assert refusal(capsys, "--recipe", "x", *shlex.split(wrong)).startswith(f"bake: error: {told}")


def test_a_required_flag_that_is_misspelled_is_named_beside_the_missing_one(capsys):
    message = refusal(capsys, "--recipee", "x", "--loa", "2")
    assert "required: --recipe; unrecognized arguments: --recipee; did you mean --recipe?" in message
    assert "--loa" not in message


def test_required_words_without_a_flag_are_named(capsys):
    class Move(Arguments):
        source: CliPositionalArg[str] = argument("what is moved", "FROM")
        to: CliPositionalArg[Path] = argument("where to", "TO")

    assert refusal(capsys, cls=Move) == "bake: error: the following arguments are required: FROM, TO"
    assert refusal(capsys, "x", cls=Move) == "bake: error: the following arguments are required: TO"


def test_the_flag_that_is_meant_is_named_once(capsys):
    assert refusal(capsys, "--recipe", "x", "--loavs", "2").count("did you mean --loaves?") == 1
    assert "did you mean" not in refusal(capsys, "--recipe", "x", "--model", "m"), "it is not like --help"


def test_several_wrong_values_are_told_together(capsys):
    told = refusal(capsys, "--recipe", "x", "--loaves", "0", "--grain", "oats")
    assert "--loaves" in told and "--grain" in told


class Checked(Arguments):
    overrides: CheckedOverrides = argument("anything", "key=value", default=[])


def test_the_value_of_an_unknown_flag_is_no_wrong_override(capsys):
    told = refusal(capsys, "--nonsense", "1", "a=b", "2", cls=Checked)
    assert told == "bake: error: unrecognized arguments: --nonsense; '2' is not key=value or ~key"


def test_an_override_without_a_value_can_be_refused(capsys):
    assert bake("a=b", cls=Checked).overrides == ["a=b"]
    assert refusal(capsys, "a=b", "c", cls=Checked) == "bake: error: 'c' is not key=value or ~key"


def test_the_help_has_a_line_for_each_argument(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as end:
        bake("--help")
    assert end.value.code == 0
    told = capsys.readouterr().out
    assert "Bake.\n\n    as written\n" in told and told.endswith("The end.\n")
    lines = [" ".join(line.split()) for line in told.splitlines()]
    for line in (
        "key=value anything else",
        "--recipe RECIPE what is baked, in order",
        "--out DIR folder (default: the table)",
        "--loaves LOAVES how many, 100% of them (default: 1)",
        "--grain {rye,wheat} of the flour (default: rye)",
        "--two-times bake again",
        "--guests GUEST [GUEST ...]",
    ):
        assert line in lines


def test_a_command_may_have_its_own_defaults(capsys):
    declared = with_defaults(Bake, loaves=4, recipe=["bread"], out=None)
    made = bake(cls=declared)
    assert (made.loaves, made.recipe, made.out) == (4, ["bread"], None)
    assert isinstance(made, Bake) and bake("--recipe", "x").loaves == 1
    with pytest.raises(SystemExit):
        bake("--help", cls=declared)
    assert "(default: 4)" in capsys.readouterr().out


def test_a_declaration_is_made_from_python_with_the_checks_of_the_command_line():
    made = Bake(recipe=["bread"], loaves=3, overrides=["a=1"])
    assert made == bake("--recipe", "bread", "--loaves", "3", "a=1")
    for values, told, flags in (
        ({"loaves": 0}, "argument --loaves: must be a whole number of at least 1, not 0", ["--loaves"]),
        ({"grain": "wheat", "two_times": True}, "--two-times is for rye, not for --grain wheat", []),
        ({"oven_size": 2}, "unrecognized arguments: --oven-size", ["--oven-size"]),
        ({"recipe": None}, "argument --recipe: must be", ["--recipe"]),
    ):
        with pytest.raises(ArgumentsError) as refused:
            Bake(**{"recipe": ["x"]} | values)
        assert str(refused.value).startswith(told) and list(refused.value.flags) == flags
    with pytest.raises(ArgumentsError, match="arguments are required: --recipe"):
        Bake()


def test_a_changed_copy_is_checked_and_keeps_what_was_given():
    made = Bake(recipe=["bread"], loaves=3)
    assert made.changed(heat=9) == Bake(recipe=["bread"], loaves=3, heat=9)
    assert made.changed(heat=9).model_fields_set == {"recipe", "loaves", "heat"}
    with pytest.raises(ArgumentsError, match="--loaves"):
        made.changed(loaves=0)


def test_values_of_yaml_are_read_as_words_of_a_command_line():
    made = Bake.from_plain({"recipe": "bread", "2nd-oven": 7, "heat": 9, "out": None})
    assert made == bake("--recipe", "bread", "--2nd-oven", "7", "--heat", "9")
    assert Bake.from_plain({"recipe": [1, "b"], "two-times": True}).recipe == ["1", "b"]
    for wrong in ({"loaves": True}, {"two_times": "yes"}, {"two_times": 1}, {"heat": [1, 2]}, {"out": {}}):
        with pytest.raises(ArgumentsError, match=f"argument --{next(iter(wrong)).replace('_', '-')}: must"):
            Bake.from_plain({"recipe": ["x"]} | wrong)


given_values = st.fixed_dictionaries(
    {"recipe": st.lists(words, min_size=1, max_size=3)},
    optional={
        "out": words.map(Path),
        "loaves": st.integers(1, 99),
        "heat": st.floats(allow_nan=False, allow_infinity=False),
        "grain": st.sampled_from(["rye", "wheat"]),
        "2nd-oven": words,
        "sizes": st.tuples(values, values),
        "guests": st.lists(words.map(Path), max_size=3),
        "overrides": st.lists(alone, max_size=3),
    },
)


@given(given_values)
def test_the_words_of_arguments_give_these_arguments(some):
    made = Bake(**some)
    assert bake(*made.to_argv()) == made


def test_the_words_are_what_differs_from_the_defaults_in_declared_order():
    made = Bake(overrides=["a=1"], guests=["-x"], loaves=1, heat=9, recipe=["b", "c"], two_times=True)
    told = "--recipe b --recipe c --heat 9.0 --two-times --guests=-x a=1"
    assert made.to_argv() == told.split()
    assert Bake(recipe=["@b.yaml"]).to_argv() == ["--recipe=@b.yaml"], "else a file of settings"
    with pytest.raises(ValueError, match="--loaves"):
        with_defaults(Bake, loaves=2)(recipe=["b"]).model_copy(update={"loaves": None}).to_argv()


def test_a_former_name_goes_on_working_and_is_not_shown(capsys):
    class Renamed(Arguments):
        questions: list[str] = argument("asked", "FILE", old="data")

    made = bake("--data", "a", "--questions=b", "--data=c", cls=Renamed)
    assert made.questions == ["a", "b", "c"] and made.to_argv()[0] == "--questions"
    assert Renamed.from_plain({"data": "a"}).questions == ["a"]
    assert "required: --questions" in refusal(capsys, cls=Renamed)
    with pytest.raises(SystemExit):
        bake("--help", cls=Renamed)
    assert "--data" not in capsys.readouterr().out


def test_rare_flags_are_shown_on_demand_by_heading(capsys):
    class Rare(Bake):
        heat: float = argument("of the oven", rare="the oven", default=220)
        water: int = argument("how much", rare="the dough", default=1)

    assert bake("--recipe=x", "--heat=3", "--water=2", cls=Rare).heat == 3
    texts = []
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            bake(flag, cls=Rare)
        texts.append(capsys.readouterr().out)
    usual, every = texts
    assert "--help-all" in usual and not any(text in usual for text in ("--heat", "--water", "the oven"))
    assert "the oven:\n  --heat" in every and "the dough:\n  --water" in every and "--loaves" in every
    with pytest.raises(SystemExit):
        bake("--help")
    told = capsys.readouterr().out
    assert "--heat" in told and "--help-all" not in told


def test_a_thing_has_one_name_in_all_commands_and_former_names_go_on_working():
    from rag_r1.corpus.command import CheckArguments
    from rag_r1.evaluation.eval_arguments import EvalArguments
    from rag_r1.evaluation.probes.command import PassagesArguments
    from rag_r1.iterate.command import IterateArguments
    from rag_r1.serving.arguments import ServeArguments
    from rag_r1.sft.filter_command import FilterArguments
    from rag_r1.sft.traces_command import TracesArguments

    def read(cls: type, words: str):
        return read_arguments(cls, words.split(), description="")

    asked, url = "--out o --data q", "http://127.0.0.1:1/v1"
    assert read(EvalArguments, f"{asked} --model m").questions == [Path("q")]
    assert read(CheckArguments, f"{asked} --corpus c").questions == [Path("q")]
    assert read(PassagesArguments, "--out o.json --data q --corpus c").questions == [Path("q")]
    asked = "--out o --questions q"
    assert read(FilterArguments, f"{asked} --model m --engine chat --url {url}").base_url == url
    assert read(TracesArguments, f"{asked} --teacher-model m --teacher-url {url}").base_url == url
    assert read(IterateArguments, "--recipe r --out o --dry-run").check_only
    assert read(ServeArguments, "--model m --concurrency 3").in_flight == 3
