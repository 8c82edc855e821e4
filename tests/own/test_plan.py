"""The plan: what its file says, how flags and words change it, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.options.command_line import read_arguments
from rag_r1.options.sections import PlanError
from rag_r1.own.arguments import OwnArguments
from rag_r1.own.plan import SECTIONS
from rag_r1.own.plan_file import PLAN, plan_text, read_plan

TEXTS = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=20)


def arguments(*words: str) -> OwnArguments:
    return read_arguments(OwnArguments, ["--out", "x", *words], description="")


@given(
    texts=st.lists(TEXTS.filter(lambda text: not Path(text or "x").exists()), max_size=3),
    body=st.dictionaries(TEXTS, st.one_of(st.none(), st.integers(), TEXTS), max_size=3),
    price=st.floats(0, 1e6),
    steps=st.one_of(st.none(), st.integers(1, 10**6)),
)
def test_a_written_plan_is_read_as_the_same_plan(tmp_path_factory, texts, body, price, steps):
    flags = {
        "policy": {"keys": texts},
        "teacher": {"body": body, "price_in": price},
        "grpo": {"steps": steps, "overrides": texts},
    }
    plan = read_plan(None, flags)
    file = tmp_path_factory.mktemp("plan") / PLAN
    file.write_text(plan_text(plan), encoding="utf-8")
    assert read_plan(file, {}) == plan


def test_a_written_plan_has_every_key_with_a_comment_before_it():
    text = plan_text(read_plan(None, {}))
    lines = text.splitlines()
    keys = {name: set(section) for name, section in yaml.safe_load(text).items()}
    assert keys == {name: set(declared.__pydantic_fields__) for name, declared in SECTIONS.items()}
    for number, line in enumerate(lines):
        if line.startswith("  ") and not line.lstrip().startswith("#"):
            assert lines[number - 1].lstrip().startswith("# "), line


def test_flags_and_words_change_the_keys_of_the_file_and_nothing_else(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("policy: {model: m}\ngrpo: {steps: 5}\nteacher: {url: 'http://t/v1', price_in: 1}\n")
    args = arguments(
        "manuals", "--steps", "7", "--price-in", "2", "sft.overrides=[a.b=1, c.d=2]", "~policy.model"
    )
    plan = read_plan(file, args.flags(), args.changes)
    assert (plan.documents.folder, plan.grpo.steps, plan.teacher.price_in) == ("manuals", 7, 2.0)
    assert (plan.teacher.url, plan.policy.model) == ("http://t/v1", None)
    assert plan.sft.overrides == ("a.b=1", "c.d=2")
    untouched = read_plan(None, {})
    for name in ("filter", "evaluation", "questions"):
        assert getattr(plan, name) == getattr(untouched, name)


def test_paths_are_those_of_the_working_directory_wherever_the_plan_is_read_again(tmp_path, monkeypatch):
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path)
    plan = read_plan(None, {"documents": {"folder": "docs"}, "policy": {"model": "owner/name"}})
    assert plan.documents.folder == str(tmp_path / "docs")
    assert plan.policy.model == "owner/name", "a name of the Hub is no path"


def test_the_folder_of_an_unknown_user_is_no_path_on_this_machine():
    plan = read_plan(None, {"documents": {"folder": "~nobody-of-this-name/docs"}})
    assert plan.documents.folder == "~nobody-of-this-name/docs"


def test_a_date_in_a_request_is_a_text(tmp_path):
    plan = read_plan(None, {}, ["teacher.body={since: 2026-11-28, logit_bias: {50256: -100}}"])
    assert plan.teacher.body == {"since": "2026-11-28", "logit_bias": {"50256": -100}}
    file = tmp_path / PLAN
    file.write_text(plan_text(plan))
    assert read_plan(file, {}) == plan


@pytest.mark.parametrize(
    "key", ["run.seed", "teacher.price_in", "teacher.max_cost", "questions.test_share", "filter.share"]
)
@pytest.mark.parametrize("value", ["true", "'1'"])
def test_neither_a_text_nor_true_is_a_number(key, value):
    with pytest.raises(PlanError, match=f"{key} must be a"):
        read_plan(None, {}, [f"{key}={value}"])
    read_plan(None, {}, [f"{key}=1"])


@pytest.mark.parametrize(
    ("word", "fault"),
    [
        ("filter.replays=0", "filter.replays must be a whole number of at least 1"),
        ("documents.folder=''", "documents.folder must be a text that is not empty"),
        ("run.seed=9223372036854775808", "run.seed must be a whole number of at most 64 bits"),
        ("teacher.body={temperature: .nan}", "teacher.body must be a mapping of a request's keys"),
        ("teacher.api_key_env=sk-1", "teacher.api_key_env must be the name of an environment variable$"),
    ],
)
def test_what_a_step_could_not_use_is_refused_in_the_plan(word, fault):
    with pytest.raises(PlanError, match=fault):
        read_plan(None, {}, [word])


def test_all_wrong_keys_and_values_are_reported_together(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("polcy: {}\ngrpo: {steps: 0, stps: 3}\nfilter: 5\n")
    with pytest.raises(PlanError) as refused:
        read_plan(file, {}, ["sft.skip.x=1", "seed=3"])
    parts = ("polcy", "grpo.steps must be", "unknown key grpo.stps", "filter must be a mapping", "seed=3")
    assert [part for part in parts if part not in str(refused.value)] == []


@pytest.mark.parametrize(
    ("words", "skipped"),
    [
        ([], set()),
        (["--skip", "filter"], {"filter"}),
        (["--evaluate-only"], {"sft", "filter", "grpo"}),
        (["--skip", "sft", "evaluation"], {"sft", "evaluation"}),
    ],
)
def test_steps_that_are_left_out(words, skipped):
    plan = read_plan(None, arguments(*words).flags())
    assert {name for name in SECTIONS if getattr(getattr(plan, name), "skip", False)} == skipped
    assert plan.trains == ("--evaluate-only" not in words)


def test_two_folders_or_an_empty_one_are_refused(capsys):
    for words, fault in ((["one", "two"], "one, two: give one FOLDER"), ([""], "FOLDER must be a path")):
        with pytest.raises(SystemExit) as ended:
            arguments(*words)
        assert ended.value.code == 2 and fault in capsys.readouterr().err


@pytest.mark.parametrize("flags", [{"skip": ["grpo"]}, {"evaluate_only": True}])
def test_a_run_cannot_end_after_a_step_that_is_left_out(flags):
    with pytest.raises(ValueError, match="--until grpo: --(skip|evaluate-only) leaves out that step"):
        OwnArguments(out=Path("o"), until="grpo", **flags)
    OwnArguments(out=Path("o"), until="traces", **flags)


def test_a_plan_with_a_wrong_key_has_the_right_ones_of_its_section():
    with pytest.raises(PlanError) as refused:
        read_plan(None, {}, ["policy.model=nowhere", "policy.keyz=[a]", "teacher.url=3", "teacher.model=m"])
    plan = refused.value.readable
    assert (plan.policy.model, plan.teacher.model) == ("nowhere", None)
