"""The markers of a pipeline's steps: what is skipped, goes on, is made again, or refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.runs.errors import RunError
from rag_r1.runs.steps import PipelineFolder, Step, fingerprint


@pytest.fixture
def calls() -> list[str]:
    return []


def step(calls: list[str], name: str, *needs: str, text: str = "x", fails: bool = False, **settings) -> Step:
    """A step that notes that it was made, and writes `text`."""

    def work(folder: Path) -> dict[str, int]:
        calls.append(name)
        number = len(list(folder.glob("start-*")))
        (folder / f"start-{number}").touch()
        if fails:
            raise RunError("killed")
        (folder / "result").write_text(text)
        return {"starts": number + 1}

    return Step(name, settings, work, ("result",), needs)


def run(out: Path, *steps: Step) -> list[str]:
    """What was found of each step."""
    with PipelineFolder.locked(out) as folder:
        return [folder.run(one) for one in steps]


def test_a_step_that_is_done_is_not_made_again(tmp_path, calls):
    steps = [step(calls, "a", size=1), step(calls, "b", "a")]
    assert run(tmp_path, *steps) == ["new", "new"] and run(tmp_path, *steps) == ["done", "done"]
    assert calls == ["a", "b"]
    with PipelineFolder.locked(tmp_path) as folder:
        assert folder.facts("a") == {"starts": 1} and folder.seconds("a") >= 0
        assert folder.facts("c") == {} and folder.seconds("c") is None


def test_a_step_whose_settings_are_equal_but_written_in_another_way_is_not_made_again(tmp_path, calls):
    assert run(tmp_path, step(calls, "a", size=1, of={"old": None}), step(calls, "b", "a")) == ["new", "new"]
    assert run(tmp_path, step(calls, "a", size=1.0, new=None), step(calls, "b", "a")) == ["done", "done"]
    assert calls == ["a", "b"]


def test_a_step_that_was_interrupted_goes_on_in_its_folder(tmp_path, calls):
    with pytest.raises(RunError, match="killed"):
        run(tmp_path, step(calls, "a", fails=True, size=1))
    assert not (tmp_path / "a" / "done.json").exists()
    assert run(tmp_path, step(calls, "a", size=1)) == ["begun"]
    assert json.loads((tmp_path / "a" / "done.json").read_text())["facts"] == {"starts": 2}


@pytest.mark.parametrize("fails", [False, True])
def test_other_settings_are_refused_by_the_name_of_the_key(tmp_path, calls, fails):
    try:
        run(tmp_path, step(calls, "a", fails=fails, size=1, seed=0))
    except RunError:
        pass
    before = list(calls)
    for changed in ({"size": 2, "seed": 0}, {"size": 1, "seed": 0, "new": "x"}, {"seed": 0}):
        with pytest.raises(RunError) as refused:
            run(tmp_path, step(calls, "a", **changed))
        key = "new" if "new" in changed else "size"
        assert f"a.{key} was " in str(refused.value) and "a.seed" not in str(refused.value)
        assert "--out" in str(refused.value)
    assert calls == before


def test_settings_of_a_step_that_has_not_begun_may_change(tmp_path, calls):
    with pytest.raises(RunError, match="killed"):
        run(tmp_path, step(calls, "a"), step(calls, "b", "a", fails=True), step(calls, "c", "b", size=1))
    assert run(tmp_path, step(calls, "a"), step(calls, "b", "a"), step(calls, "c", "b", size=2)) == [
        "done",
        "begun",
        "new",
    ]


def test_what_was_made_from_another_result_is_moved_aside_and_made_again(tmp_path, calls):
    run(tmp_path, step(calls, "a", text="old"), step(calls, "b", "a"), step(calls, "c", "b"))
    shutil.rmtree(tmp_path / "a")
    assert run(tmp_path, step(calls, "a", text="new"), step(calls, "b", "a"), step(calls, "c", "b")) == [
        "new",
        "outdated",
        "done",  # b has the same result as before
    ]
    assert (tmp_path / "b.old-1" / "result").exists() and calls == ["a", "b", "c", "a", "b"]
    shutil.rmtree(tmp_path / "a")
    assert run(tmp_path, step(calls, "a", text="newer"), step(calls, "b", "a", text="y")) == [
        "new",
        "outdated",
    ]
    assert (tmp_path / "b.old-2").exists()


def test_a_step_is_not_made_without_what_it_builds_on(tmp_path, calls):
    with pytest.raises(RunError, match="b builds on a, which is not done"):
        run(tmp_path, step(calls, "b", "a"))
    assert not calls and not (tmp_path / "b").exists()


def test_the_status_of_a_step_is_what_a_start_would_find(tmp_path, calls):
    first, second = step(calls, "x/a", size=1), step(calls, "x/b", "x/a")
    folder = PipelineFolder(tmp_path)
    assert (folder.status(first), folder.status(second)) == ("new", "waiting")
    with pytest.raises(RunError):
        run(tmp_path, step(calls, "x/a", fails=True, size=1))
    assert (folder.status(first), folder.status(second)) == ("begun", "waiting")
    run(tmp_path, first, second)
    assert (folder.status(first), folder.status(second)) == ("done", "done")
    with pytest.raises(RunError, match="x/a.size was 1"):
        folder.status(step(calls, "x/a", size=2))
    shutil.rmtree(tmp_path / "x" / "a")
    run(tmp_path, step(calls, "x/a", text="other", size=1))
    assert folder.status(second) == "outdated" and calls[-1] == "x/a"


def test_a_step_without_its_result_is_not_done(tmp_path, calls):
    nothing = Step("a", {}, lambda folder: {}, ("result",))
    with pytest.raises(RunError, match="result is missing"):
        run(tmp_path, nothing)
    run(tmp_path, step(calls, "a"))
    (tmp_path / "a" / "result").unlink()
    with pytest.raises(RunError, match="marked as done, but result is missing"):
        run(tmp_path, step(calls, "a"))


@pytest.mark.parametrize("marker", ["begun.json", "done.json"])
@pytest.mark.parametrize("text", ["{", "[]", "\x00", '{"settings": 1, "hash": 1}'])
def test_a_marker_that_cannot_be_read_is_named(tmp_path, calls, marker, text):
    run(tmp_path, step(calls, "a"))
    (tmp_path / "a" / marker).write_text(text)
    with pytest.raises(RunError, match=marker):
        run(tmp_path, step(calls, "a"))


def test_a_path_that_is_not_utf_8_can_be_a_setting_and_a_fact(tmp_path, calls):
    named = step(calls, "a", model="caf\udce9")
    assert run(tmp_path, named) == ["new"] and run(tmp_path, named) == ["done"]


def test_one_process_at_a_time_works_in_a_folder(tmp_path):
    with PipelineFolder.locked(tmp_path), pytest.raises(RunError, match="in use"):
        run(tmp_path)
    assert run(tmp_path) == []


NAMES = st.sampled_from(["a", "b/a", "b/c", "caf\udce9"])
FILES = st.dictionaries(NAMES, st.binary(max_size=4), min_size=1, max_size=4)


def written(folder: Path, files: dict[str, bytes]) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@given(FILES, FILES)
def test_two_results_have_one_fingerprint_if_and_only_if_they_are_equal(tmp_path_factory, first, second):
    base = tmp_path_factory.getbasetemp() / "fingerprints"
    both = [
        fingerprint(written(base / name / "folder", files).parent, ["folder"])
        for name, files in (("first", first), ("second", second))
    ]
    assert (both[0] == both[1]) == (first == second)
