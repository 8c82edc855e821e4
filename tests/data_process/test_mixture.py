"""Which entries flags and a YAML file give, and what is said about wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_process.mixture import MixEntry, read_entries
from data_process.sources import SOURCES
from rag_r1.runs.start_checks import StartChecks, StartError


def entries(tmp_path: Path, text: str) -> list[MixEntry]:
    (tmp_path / "mix.yaml").write_text(text, encoding="utf-8")
    return read({}, tmp_path / "mix.yaml")


def read(flags: dict[str, list[str]], mix: Path | None) -> list[MixEntry]:
    with StartChecks() as checks:
        return read_entries(flags, mix, checks)


def test_a_flag_names_source_name_file_and_number():
    train = ["nq", "questions:mine=a b/my.jsonl@500", "hotpotqa=x=y.json"]
    assert read({"train": train, "test": ["nq=hub:dev@7"]}, None) == [
        MixEntry("test", SOURCES["nq"], "nq", hub_split="dev", take=7),
        MixEntry("train", SOURCES["nq"], "nq"),
        MixEntry("train", SOURCES["questions"], "mine", Path("a b/my.jsonl"), take=500),
        MixEntry("train", SOURCES["hotpotqa"], "hotpotqa", Path("x=y.json")),
    ]


def test_a_yaml_file_has_the_same_and_can_join_questions(tmp_path):
    text = """
train:
  - {source: hotpotqa, file: train.json, take: 10}
  - {source: nq, join: 3}
validation:
  - {source: bamboogle, name: b}
"""
    assert entries(tmp_path, text) == [
        MixEntry("test", SOURCES["bamboogle"], "b"),
        MixEntry("train", SOURCES["hotpotqa"], "hotpotqa", Path("train.json"), take=10),
        MixEntry("train", SOURCES["nq"], "nq_3", join=3),
    ]


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("", "--train : give SOURCE"),
        ("trivia=x.json", "there is no source 'trivia': did you mean triviaqa\\? use nq, triviaqa, "),
        ("popqa", "popqa has no train split on the Hub that is known here: give a file"),
        ("questions", "questions has no train split on the Hub"),
        ("n_questions=hub:train", "n_questions has no train split on the Hub"),
        ("nq@0", "--train nq@0: give SOURCE"),
        ("nq=x.json@many", "--train nq=x.json@many: 'many' after the @ is not .*give SOURCE.*train.json@500"),
        ("nq=hub:dev@-3", "'-3' after the @ is not a whole number"),
        ("nq:a/b=x.json", "the name 'a/b' must have letters"),
    ],
)
def test_a_wrong_flag_is_named(flag, message):
    with pytest.raises(StartError, match=message):
        read({"train": [flag]}, None)


def test_a_file_may_have_an_at_sign_in_its_name(tmp_path):
    (tmp_path / "a@b.json").touch()
    (entry,) = read({"train": [f"nq={tmp_path}/a@b.json"]}, None)
    assert (entry.file, entry.take) == (tmp_path / "a@b.json", None)


WHOLE = "a whole number of at least 1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: [", "cannot read --mix .*mix.yaml"),
        ("test: []", "needs a list under train or validation, or both, and no other keys"),
        ("- nq", "needs a list under train or validation"),
        ("train: nq", "train must be a list of entries"),
        ("train: [nq]", "train, entry 1: must be keys and values"),
        (
            "train: [{source: nq}, {source: nq, n: 5}]",
            "entry 2: unknown key entry.n: use one of source, name",
        ),
        ("train: [{file: x.json}]", "entry 1: there is no source ''"),
        ("train: [{source: nq, take: many}]", f"entry.take must be .*{WHOLE}.*, not 'many'"),
        ("train: [{source: nq, join: true}]", f"entry.join must be {WHOLE}, not True"),
        ("train: [{source: nq, file: 3}]", "entry.file must be .*a text.*, not 3"),
        ("train: [{source: nq, file: x.json, hub_split: dev}]", "either a file or a split of the Hub"),
        ("train: []", "nothing to read"),
        ("!!python/object/apply:os.getcwd []", "cannot read --mix"),
    ],
)
def test_a_wrong_yaml_file_is_named_with_the_entry(tmp_path, text, message):
    with pytest.raises(StartError, match=message):
        entries(tmp_path, text)


def test_all_that_is_wrong_in_a_yaml_file_is_named_at_once(tmp_path):
    with pytest.raises(StartError) as refused:
        entries(tmp_path, "train: [{source: nq, fil: x}, {source: nq, take: -1}]\nvalidation: 3\ntset: []")
    problems = "\n".join(refused.value.problems)
    for named in ("entry 1: unknown key", "entry 2: entry.take", "validation must be", "unknown key tset"):
        assert named in problems


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_names_its_splits_on_the_hub_and_describes_itself(name):
    kind = SOURCES[name]
    assert kind.name == name and kind.description and set(kind.hub) <= {"train", "validation"}
    assert all(split.dataset.count("/") == 1 and split.split for split in kind.hub.values())
