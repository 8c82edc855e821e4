"""`settings.yaml` of a run: repeats the run, has no secret, and is left alone by a start that is refused."""

from __future__ import annotations

import importlib
import shlex
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.io.secrets import holds_secret
from rag_r1.options.arguments.errors import ArgumentsError
from rag_r1.options.arguments.fields import fields_of
from rag_r1.options.arguments.overrides import Overrides
from rag_r1.options.command_exit import CommandError
from rag_r1.options.command_line import Arguments, argument, read_arguments
from rag_r1.options.server_address import Address
from rag_r1.options.settings_file import SETTINGS, read_settings, recorded_settings, settings_text
from tests.property_limits import at_most

#: The declarations of all commands that fill a folder.
DECLARED = {
    "rag-r1 eval": "rag_r1.evaluation.eval_arguments:EvalArguments",
    "rag-r1 eval modes": "rag_r1.evaluation.modes:ModesArguments",
    "rag-r1 traces": "rag_r1.sft.traces_command:TracesArguments",
    "rag-r1 filter": "rag_r1.sft.filter_command:FilterArguments",
    "rag-r1 sft-data": "rag_r1.sft.data_arguments:SftDataArguments",
    "rag-r1 sft": "rag_r1.sft.train_command:SftArguments",
    "rag-r1 passage-questions": "data_process.passage_questions.command:PassageQuestionsArguments",
    "rag-r1 corpus check": "rag_r1.corpus.command:CheckArguments",
    "rag-r1 questions": "rag_r1.questions.arguments:QuestionsArguments",
    "rag-r1 retriever data": "rag_r1.retriever.data.arguments:DataArguments",
    "rag-r1 retriever train": "rag_r1.retriever.training.options:TrainOptions",
    "rag-r1 train": "rag_r1.training.command:TrainArguments",
    "rag-r1 stages": "rag_r1.training.stages:StagesArguments",
    "rag-r1 iterate": "rag_r1.iterate.command:IterateArguments",
    "rag-r1 pipeline": "rag_r1.demo.pipeline.arguments:PipelineArguments",
    "rag-r1 demo": "rag_r1.demo.run:DemoArguments",
}
#: Values with which each of them accepts its other arguments.
USUAL = {"base_url": "http://127.0.0.1:1", "engine": "chat", "recipe": "grpo", "traces": "t"}
CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
TEXTS = st.text(CHARACTERS, min_size=1, max_size=12).filter(
    lambda text: not text.startswith(("-", "@")) and not holds_secret(text)
)


def declaration(path: str) -> type[Arguments]:
    module, name = path.split(":")
    return getattr(importlib.import_module(module), name)


def values_for(annotation: Any) -> st.SearchStrategy[Any]:
    """Values by type, of which a command may refuse some."""
    inner = get_args(annotation)
    if hasattr(annotation, "__metadata__"):
        return st.just("http://127.0.0.1:1/v1") if annotation == Address else values_for(inner[0])
    if get_origin(annotation) is Literal:
        return st.sampled_from(inner)
    if get_origin(annotation) is list:
        return st.lists(values_for(inner[0]), max_size=3)
    if inner:
        return st.one_of(*(values_for(kind) for kind in inner if kind is not NoneType))
    return {
        bool: st.booleans(),
        int: st.integers(0, 100),
        float: st.floats(0, allow_infinity=False),
        Path: TEXTS.map(Path),
        str: TEXTS | TEXTS.map("rag_r1.agent.x={}".format).filter(lambda text: not holds_secret(text)),
    }[annotation]


@pytest.mark.parametrize("path", DECLARED.values(), ids=DECLARED)
@at_most(100)  # each example makes three parsers: 1,000 for 16 commands take ten minutes
@given(data=st.data())
def test_the_settings_of_every_command_come_back_as_they_were(path, data, tmp_path_factory):
    cls = declaration(path)
    fields = fields_of(cls)
    needed = {name: "x" for name, field in fields.items() if field.is_required()}
    made = cls.from_plain(needed | {name: value for name, value in USUAL.items() if name in fields})
    for name in data.draw(st.lists(st.sampled_from(sorted(fields)), unique=True, max_size=6)):
        value = data.draw(values_for(fields[name].rebuild_annotation()), label=name)
        try:
            made = made.changed(**{name: value})
        except ArgumentsError:
            continue
    file = tmp_path_factory.mktemp("settings") / SETTINGS
    file.write_text(settings_text(made, "rag-r1 it"), encoding="utf-8")
    assert read_arguments(cls, [f"@{file}"], description="") == made


class Play(Arguments):
    questions: list[Path] = argument("questions", "FILE")
    out: Path = argument("folder", "DIR")
    body: str = argument("JSON", default="{}")
    options: str = argument("flags of a server", default="")
    overrides: Overrides = argument("others", "key=value", default=[])


def test_the_first_line_is_the_command_that_repeats_the_run(tmp_path, capsys):
    out = tmp_path / "it's a run"
    args = Play(questions=["q"], out=out, overrides=["a=[1, 2]", "c=.nan"])
    with recorded_settings("rag-r1 play", args):
        first, second = (out / SETTINGS).read_text().splitlines()[:2]
    assert str(Path.cwd()) in second and (out / SETTINGS).stat().st_mode & 0o077 == 0
    hash_, *command, flag, other = shlex.split(first)
    assert (hash_, command[:2], flag, other) == ("#", ["rag-r1", "play"], "--out", "OTHER")
    again = read_arguments(Play, [*command[2:], flag, "other", "b=3"], description="")
    assert again == args.changed(out=Path("other"), overrides=["a=[1, 2]", "c=.nan", "b=3"])


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("overrides", ["a.b=1", "rag_r1.tools.web.api_key=hush"], "rag_r1.tools.web.api_key"),
        ("overrides", ["a.b=1", "rag_r1.tools.web={Authorization: hush}"], "rag_r1.tools.web"),
        ("overrides", ["a.b=1", "rag_r1.tools.web.url=http://me:hush@host"], "rag_r1.tools.web.url"),
        ("overrides", ["a.b=1", "env.WANDB_API_KEY=hush"], "env.WANDB_API_KEY"),
        ("body", '{"extra": [{"token": "hush"}]}', "body"),
        ("options", "--max-num-seqs 4 --api-key hush", "options"),
    ],
)
def test_what_is_secret_is_left_out_and_named(name, value, named):
    text = settings_text(Play(questions=["q"], out="o", **{name: value}), "rag-r1 play")
    assert "hush" not in text and f"Left out as secret: {named}\n" in text
    assert "a.b=1" in text or name != "overrides"


@pytest.mark.parametrize(
    "text",
    ["data.prompt_key=prompt", "api_key_env=KEY", '{"max_tokens": 5}', "--max-tokens 5", "a=[1, 2]", "{x"],
)
def test_ordinary_settings_are_not_taken_for_secrets(text):
    assert not holds_secret(text)


def test_a_start_that_fails_leaves_the_settings_of_the_one_before(tmp_path, monkeypatch):
    (tmp_path / "caf\udce9").mkdir()  # the file names the working directory
    monkeypatch.chdir(tmp_path / "caf\udce9")

    def start(samples: str, error: BaseException | None = None) -> None:
        args = Play(questions=["q"], out=tmp_path / "run", options=samples)
        with recorded_settings("rag-r1 play", args):
            if error is not None:
                raise error

    file = tmp_path / "run" / SETTINGS
    with pytest.raises(ValueError):
        start("0", ValueError())
    assert not (tmp_path / "run").exists()
    start("1")
    with pytest.raises(ValueError):
        start("2", ValueError())
    assert read_settings(file, Play)["options"] == "1"
    with pytest.raises(KeyboardInterrupt):
        start("3", KeyboardInterrupt())
    assert read_settings(file, Play)["options"] == "3"
    file.write_text("options: mine\n")
    with pytest.raises(CommandError, match=SETTINGS):
        start("4")
    assert file.read_text() == "options: mine\n"


def test_a_start_that_fails_restores_every_byte_of_the_settings_before(tmp_path):
    earlier = b"# rag-r1 play\noptions: caf\xe9\n"  # edited by hand, in another encoding
    (tmp_path / SETTINGS).write_bytes(earlier)
    with pytest.raises(ValueError), recorded_settings("rag-r1 play", Play(questions=["q"], out=tmp_path)):
        raise ValueError
    assert (tmp_path / SETTINGS).read_bytes() == earlier


def test_results_of_other_settings_are_not_replaced_without_a_word(tmp_path, capsys):
    class Made(Arguments):
        folder: Path = argument("a folder")
        out: Path = argument("another")

    for folder, said in (("a", ""), ("a", ""), ("b", "of another folder")):
        with recorded_settings("rag-r1 made", Made(folder=folder, out=tmp_path), replaces=True):
            pass
        assert (said in (error := capsys.readouterr().err)) and bool(error) == bool(said)
