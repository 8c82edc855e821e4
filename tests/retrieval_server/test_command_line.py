"""Command lines out of typed declarations: what is typed reaches its field, or is refused with a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, model_validator

from retrieval_server import commands
from retrieval_server.build_options import BuildCommand
from retrieval_server.command_line import parse
from retrieval_server.engine.options import EngineOptions
from retrieval_server.options import Flag, Group, Options
from retrieval_server.serve.options import ServeCommand
from retrieval_server.server.limits import RequestLimits

WORDS = st.text(min_size=1).filter(lambda text: not text.startswith("-"))


def _even(text: str) -> int:
    if int(text) % 2:
        raise ValueError(f"{text} is odd")
    return int(text)


class Inner(Options):
    group = Group("inner", "What is inside, 100 % of it.")

    size: Annotated[int, Field(ge=1), Flag("how large")] = 3
    wait_s: Annotated[float, Field(gt=0), Flag("how long", names=("--wait",), metavar="SECONDS")] = 2.5
    hidden: int = 7


class Command(Options):
    kind: Annotated[Literal["a", "b"], Flag("which", positional=True)] = "a"
    names: Annotated[tuple[str, ...], Flag("a name; several times")] = ()
    files: Annotated[tuple[Path, ...] | None, Flag("files", in_a_row=True)] = None
    flag: Annotated[bool, Flag("on if given")] = False
    three: Annotated[bool | None, Flag("yes, no or neither")] = None
    even: Annotated[int | None, Flag("an even number", read=_even)] = None
    old: Annotated[str | None, Flag("of two names", names=("--new", "--old"))] = None
    inner: Inner = Inner()

    @model_validator(mode="after")
    def _b_has_a_flag(self) -> Command:
        if self.kind == "b" and not self.flag:
            raise ValueError("b needs --flag")
        return self


def parsed(*argv: Any) -> Command:
    return parse(Command, "A command.", list(map(str, argv)))


def refused(capsys, *argv: Any) -> str:
    with pytest.raises(SystemExit) as ended:
        parsed(*argv)
    assert ended.value.code == 2
    message, hint = capsys.readouterr().err.splitlines()
    assert hint.startswith("see ") and hint.endswith(" --help")
    return message


def test_without_flags_every_field_has_its_own_default():
    assert parsed() == Command()


@pytest.mark.slow
@given(names=st.lists(WORDS), files=st.lists(WORDS, min_size=1))
def test_values_arrive_as_they_were_typed_commas_and_brackets_included(names, files):
    flags = [part for name in names for part in ("--names", name)]
    results = parsed(*flags, "--files", *files)
    assert results.names == tuple(names) and results.files == tuple(map(Path, files))


@pytest.mark.parametrize(
    "word", ['["a.org","b.org"]', "{", "null", "None", "a,b", " blanks ", '"quoted"', "1e3"]
)
def test_words_that_mean_something_elsewhere_are_words_here(word):
    assert parsed("--names", word, "--new", word).names == (word,) and parsed("--old", word).old == word


def test_flags_without_a_value():
    assert parsed("--flag").flag is True
    assert [parsed(*flags).three for flags in ([], ["--three"], ["--no-three"])] == [None, True, False]


def test_a_model_within_a_model_has_flags_without_a_prefix_and_fields_without_a_flag_have_none(capsys):
    assert parsed("b", "--flag", "--size", 5, "--wait", 0.5).inner == Inner(size=5, wait_s=0.5)
    assert "--hidden" in refused(capsys, "--hidden=8")


@given(st.integers())
def test_a_limit_is_kept_to_exactly(size):
    if size >= 1:
        assert parsed("--size", size).inner.size == size
    else:
        with pytest.raises(SystemExit):
            parsed(f"--size={size}")


@pytest.mark.parametrize(
    "argv, sentence",
    [
        (["--size", 0], "--size must be at least 1"),
        (["--wait", 0], "--wait must be above 0 seconds"),
        (["--wait", "nan"], "--wait must be above 0 seconds"),
        (["--size", "x"], "--size must be a whole number, not 'x'"),
        (["--even", 3], "--even: 3 is odd"),
        (["c"], "kind must be a or b, not 'c'"),
        (["b"], "b needs --flag"),
    ],
)
def test_what_does_not_fit_is_refused_with_one_sentence(capsys, argv, sentence):
    assert sentence in refused(capsys, *argv)


def test_help_has_groups_texts_and_defaults(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        parsed("--help")
    output = capsys.readouterr().out
    assert ended.value.code == 0
    for part in ("A command.", "inner:\n", "100 % of it.", "how large (default 3)", "how long (default 2.5)"):
        assert part in output
    assert "--wait SECONDS" in output and "--new" in output and "hidden" not in output


def test_the_environment_is_not_read(monkeypatch):
    for name in ("SIZE", "INNER__SIZE", "INNER", "size", "NAMES"):
        monkeypatch.setenv(name, "9")
    assert parsed() == Command()


@pytest.mark.parametrize("command", [ServeCommand, BuildCommand])
def test_no_two_options_of_a_script_have_one_name(command):
    with pytest.raises(SystemExit) as ended:  # argparse refuses a second one when it is added
        parse(command, "", ["--help"])
    assert ended.value.code == 0


def test_the_server_starts_from_the_defaults_that_its_packages_declare():
    results = parse(ServeCommand, "", ["--index", "i"])
    assert (results.engine, results.limits) == (EngineOptions(), RequestLimits())


def test_names_of_indexes_and_the_default_one_first():
    results = parse(ServeCommand, "", ["--index", "news=/n", "--index", "/w,1", "--index", "old=a=b"])
    assert list(results.folders.items()) == [
        ("default", Path("/w,1")),
        ("news", Path("/n")),
        ("old", Path("a=b")),
    ]


def test_a_field_that_is_settled_has_its_value_and_no_flag(capsys):
    settled = {"kind": "b", "flag": True, "inner": Inner(size=9)}
    results = parse(Command, None, ["--names", "x"], "prog", settled)
    assert results == Command(kind="b", flag=True, names=("x",), inner=Inner(size=9))
    for argv in (["b"], ["--flag"], ["--size", "3"]):
        with pytest.raises(SystemExit):
            parse(Command, None, argv, "prog", settled)
        assert f"prog: error: unrecognized arguments: {' '.join(argv)}" in capsys.readouterr().err


def test_import_is_that_step_of_a_build():
    words = ["--faiss", "f", "--corpus", "c", "--encoder", "e", "--out", "o", "--trust"]
    with patch("retrieval_server.import_index.run") as run:
        commands.main(["import", *words])
    assert run.call_args.args == (parse(BuildCommand, "", ["import", *words]),)


def test_a_command_that_does_not_exist_is_refused_with_those_that_do(capsys):
    assert commands.main(["query"], "prog") == 2 and commands.main([], "prog") == 2
    output = capsys.readouterr()
    assert output.err.startswith("prog: there is no command 'query'\n\nusage: prog COMMAND")
    assert all(f"\n  {name} " in output.err and f"\n  {name} " in output.out for name in commands.COMMANDS)


def test_a_command_that_is_nearly_right_is_suggested(capsys):
    assert commands.main(["serv"], "prog") == 2
    message = "prog: there is no command 'serv'; did you mean serve?\nsee prog --help\n"
    assert capsys.readouterr() == ("", message)


def test_the_older_names_of_parts_are_taken_too():
    old = parse(BuildCommand, "", ["encode", "--shards", "w", "--shard", "1/2", "--encoder", "e"])
    assert old == parse(BuildCommand, "", ["encode", "--parts", "w", "--part", "1/2", "--encoder", "e"])


COMMANDS = {"serve": ServeCommand, "build": BuildCommand}


@pytest.mark.parametrize(
    "words, named",
    [
        ("serve --topk 10", "--index DIR"),
        ("serve @s.yaml", "@s.yaml; this command takes no settings file: give its flags"),
        ("build @s.yaml --backend bm25", "@s.yaml: this command takes no settings file: give its flags"),
        ("serve --web altavista", "--web"),
        ("serve --web serper --web-param gl", "NAME=VALUE"),
        ("serve --web serper --web-concurrency 0", "--web-concurrency"),
        ("serve --web serper --web-timeout nan", "--web-timeout"),
        ("serve --web serper --web-retries -1", "--web-retries"),
        ("serve --web serper --index web=i", "choose another"),
        ("serve --index=", "--index: must be DIR or NAME=DIR, not '"),
        ("serve --index wiki=", "--index: must be DIR or NAME=DIR, not '"),
        ("serve --index i --record f", "--record belongs to --web"),
        ("serve --index i --replay f", "--replay belongs to --web"),
        ("serve --index i --log-queries --log-level warning", "--log-queries: with --log-level warning"),
        ("serve --index i --log-queries --log-level error", "--log-queries: with --log-level error"),
        *((f"serve --index i --shard-replicas {n}", f"{n!r} is neither") for n in "0 4:1 x 1: :2 -1".split()),
        ("serve --index i --topk 0", "--topk"),
        ("serve --index i --topk 200", "--topk"),
        ("serve --index i --max-batch 0", "--max-batch"),
        ("serve --index i --deadline 0", "--deadline"),
        ("serve --index i --max-delay -1", "--max-delay"),
        ("serve --index i --max-wait-ms nan", "--max-wait-ms"),
        ("serve --index i --deadline inf", "--deadline must be a finite number, not 'inf'"),
        ("serve --index i --max-delay inf", "--max-delay"),
        ("serve --index i --max-wait-ms inf", "--max-wait-ms"),
        ("serve --index i --read-timeout inf", "--read-timeout"),
        ("serve --index i --replica-cpus inf", "--replica-cpus"),
        ("serve --index i --max-queue 100", "--max-queue"),
        ("build --corpus c --out o --backend bm25 --k1 inf", "--k1"),
        ("build --corpus c --out o --backend bm25 --b 2", "--b must be at most 1"),
        ("build --corpus c --out o --backend bm25 --encoder e", "--encoder is for --backend dense"),
        ("build --corpus c --out o --backend dense --batch-size 0", "--batch-size"),
        ("build --corpus c --out o --backend bm25 --faiss a", "rag-r1 index import"),
        ("build --corpus c --out o --backend dense --preset small --factory Flat", "--preset and --factory"),
        ("build --corpus c --out o --backend bm25 --preset small", "--preset is for --backend dense"),
        ("build import --corpus c --encoder e --out o", "either --faiss"),
        ("build import --corpus c --encoder e --out o --faiss a --embeddings b", "either --faiss"),
        ("build import --corpus c --encoder e --out o --faiss a --skip-bad-rows", "shift"),
        ("build import --corpus c --encoder e --out o --faiss a --factory SQ8", "built already"),
        ("build import --corpus c --encoder e --out o --faiss a --parts w", "--parts"),
        ("build import --corpus c --encoder e --out o --faiss a --backend bm25", "dense"),
    ],
)
def test_options_that_do_not_fit_are_refused(capsys, words, named):
    script, *argv = words.split()
    with pytest.raises(SystemExit) as ended:
        parse(COMMANDS[script], "", argv)
    assert ended.value.code == 2 and named in capsys.readouterr().err


def test_options_of_a_group_that_contradict_each_other_do_not_hide_the_files(tmp_path, capsys):
    words = f"--corpus {tmp_path}/none.jsonl --out {tmp_path} --backend dense --encoder {tmp_path}/none"
    with pytest.raises(SystemExit):
        commands.main(["build", *words.split(), "--dtype", "int8", "--runtime", "torch"])
    message = capsys.readouterr().err
    named = ("drop --runtime torch", "none.jsonl", f"{tmp_path} exists", f"{tmp_path}/none: no such folder")
    assert [name for name in named if name not in message] == [] and "4 problems" in message
