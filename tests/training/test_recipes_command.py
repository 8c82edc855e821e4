"""`rag-r1 recipes`: lists, shows and copies; a copy composes to the same from anywhere."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from rag_r1.cli import main
from rag_r1.config.recipes import KINDS, RECIPES, Recipe, kind_of, shipped_names
from rag_r1.training.composition import compose_recipe


def recipes(*words: object) -> int:
    return main(["recipes", *map(str, words)])


@pytest.mark.parametrize("words", [[], ["list"]])
def test_every_recipe_is_listed_with_a_sentence_below_the_command_that_takes_it(capsys, words):
    assert recipes(*words) == 0
    sections = capsys.readouterr().out.split("\n\n")
    assert [section.partition("\n")[0] for section in sections[:-1]] == [
        f"{command} --recipe NAME" for command in KINDS.values()
    ]
    for kind, section in zip(KINDS, sections, strict=False):
        listed = [line.split(maxsplit=1) for line in section.splitlines()[1:]]
        assert [name for name, _ in listed] == shipped_names(kind)
        assert all(sentence.endswith((".", "?")) for _, sentence in listed), listed


@pytest.mark.parametrize("name", ["rag_r1/grpo", "recipes/rag_r1/grpo.yaml"])
def test_a_recipe_is_shown_as_it_is(capsys, name):
    assert recipes("show", name) == 0
    assert capsys.readouterr().out == (RECIPES / "rag_r1" / "grpo.yaml").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_recipe_is_shown_with_everything_that_it_builds_on_and_with_changes(capsys):
    assert recipes("show", "rag_r1/grpo", "--composed", "data.train_batch_size=8") == 0
    config = OmegaConf.create(capsys.readouterr().out)
    assert config.data.train_batch_size == 8
    assert config.actor_rollout_ref.actor.clip_ratio == 0.2 and config.trainer.device == "cuda"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("show", "rag_r1/grpo", "data.train_batch_size=8"), "by --composed: add it"),
        (("table", "data.train_batch_size=8"), "name it with --recipe"),
        (("table", "--size", "7B"), "name it with --recipe"),
    ],
)
def test_arguments_that_would_be_ignored_are_refused(capsys, words, told):
    assert recipes(*words) == 1
    output = capsys.readouterr()
    assert output.out == "" and told in output.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("show", "rag_r1/grpo", "--composed"), ("table", "--recipe", "rag_r1/grpo")]
)
@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("trainer.total_epoch=3", "there is no such key: did you mean trainer.total_epochs? trainer has "),
        (
            "actor_rollout_ref.rolout.n=2",
            "there is no such key: did you mean actor_rollout_ref.rollout.n? actor",
        ),
        ("trainer.nnodes.x=3", "there is no such key: trainer.nnodes is a value, and has no keys"),
    ],
)
def test_a_key_that_does_not_exist_is_told_as_by_the_training(capsys, words, override, told):
    assert recipes(*words, override) == 1
    output = capsys.readouterr()
    assert output.out == "" and f"error: {override.partition('=')[0]}: {told}" in output.err


@pytest.mark.slow
def test_a_value_of_a_wrong_type_is_told_before_a_table_is_calculated_from_it(capsys):
    assert recipes("table", "--recipe", "rag_r1/grpo", "actor_rollout_ref.actor.optim.lr=fast") == 1
    output = capsys.readouterr()
    assert output.out == "" and "optim.lr: is 'fast', which is not a number" in output.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("table --recipe rag_r1/grpo --size 99X trainer.totl=2 trainer.nnodes=x", "99X totl nnodes"),
        ("table --recipe none --size 7B,99X", "'none' 99X:"),
        ("show none trainer.nnodes=1", "'none' --composed"),
        ("show --composed rag_r1/grpo trainer.totl=2 rag_r1.agnt.x=3 foo", "totl agnt 'foo'"),
        ("path none neither --x", "'none' 'neither' --x"),
    ],
)
def test_all_wrong_arguments_are_named_in_one_run(capsys, words, named):
    with suppress(SystemExit):
        assert recipes(*words.split()) == 1
    output = capsys.readouterr()
    assert output.out == "" and [word for word in named.split() if word not in output.err] == []


NO_TEXT = "mine.yaml is not a recipe: it is not text in UTF-8"


@pytest.mark.parametrize(
    ("command", "name", "message"),
    [
        *((command, "rag_r1/gpro", "did you mean rag_r1/grpo?") for command in ("show", "copy", "path")),
        *((command, "x" * 300, ".yaml cannot be read: File name") for command in ("show", "copy", "path")),
        *((command, "mine.yaml", NO_TEXT) for command in ("show", "copy")),
        ("copy", "r1_searcher/run.sh", "r1_searcher/run.sh is not a recipe"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused_in_one_line(
    capsys, tmp_path, monkeypatch, command, name, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_bytes(b"\xff\xfe")
    assert recipes(command, name, *(["new"] if command == "copy" else [])) == 1
    output = capsys.readouterr()
    (line,) = output.err.splitlines()
    assert output.out == "" and line.startswith("error: ") and message in line
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"], "nothing is written"


def test_the_folder_and_the_files_are_named(capsys):
    assert recipes("path") == 0 and recipes("path", "rag_r1/grpo", "r1_searcher/run.sh") == 0
    paths = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert paths == [RECIPES, RECIPES / "rag_r1" / "grpo.yaml", RECIPES / "r1_searcher" / "run.sh"]


@pytest.mark.parametrize("name", shipped_names())
def test_a_copy_differs_from_its_recipe_in_the_line_that_names_it(tmp_path, capsys, name):
    assert recipes("copy", name, tmp_path / "new" / "mine") == 0
    target = tmp_path / "new" / "mine.yaml"
    output = capsys.readouterr()
    assert output.out == f"{target}\n"
    source = RECIPES / f"{name}.yaml"
    assert output.err == f"use it with: {KINDS[kind_of(source)]} --recipe {target}\n"
    copied, original = (path.read_text(encoding="utf-8").splitlines() for path in (target, source))
    (added,) = [line for line in copied if line.startswith("# Copied from")]
    assert name in added
    assert [line for line in copied if line != added] == original
    assert kind_of(target) in (kind_of(source), None)


@pytest.mark.full
@pytest.mark.parametrize("name", ["rag_r1/grpo", "demo/ppo_sq", "r1_searcher/stage1_qwen", "rag_r1/sft/demo"])
def test_a_copy_composes_to_what_its_recipe_does_from_any_folder(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert recipes("copy", name, "mine.yaml") == 0
    copied = compose_recipe(Recipe.find("mine"), [])
    assert copied == compose_recipe(Recipe.find(name), [])


def test_a_copy_into_a_folder_keeps_its_name_and_replaces_no_file(tmp_path, capsys):
    assert recipes("copy", "rag_r1/grpo", tmp_path) == 0
    target = tmp_path / "grpo.yaml"
    target.write_text("mine")
    assert recipes("copy", "rag_r1/grpo", tmp_path) == 1 and target.read_text() == "mine"
    assert f"error: {target} exists already" in capsys.readouterr().err
