"""Files of sections: words change single keys, and every fault is reported with its place."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.options.declare import options
from rag_r1.options.sections import PlanError, change_key, load_sections, read_sections
from rag_r1.options.types import Count, Text


@options("one")
class One:
    name: Text = "a"
    count: Count = 0


@options("two")
class Two:
    name: Text = "b"


DECLARED = {"one": One, "two": Two}
VALUES = st.recursive(st.none() | st.booleans() | st.integers(), lambda inner: st.lists(inner, max_size=3))
NAMES = st.sampled_from(["a", "b", "c"])


@given(st.lists(NAMES, min_size=2, max_size=3), VALUES)
def test_a_word_sets_a_key_as_yaml_reads_its_value_and_another_deletes_it(path, value):
    sections: dict = {}
    key = ".".join(path)
    written = yaml.safe_dump(value, default_flow_style=True, width=10**6).splitlines()[0]
    assert change_key(sections, f"{key}={written}") is None
    found = sections
    for name in path:
        found = found[name]
    assert found == value
    assert change_key(sections, f"~{key}") is None
    parent = sections
    for name in path[:-1]:
        parent = parent[name]
    assert parent == {}
    assert "there is no key" in change_key(sections, f"~{key}")


@pytest.mark.parametrize(
    ("word", "fault"),
    [
        ("count=1", "write section.key=value"),
        ("one.count.x=1", "count is not a section"),
        ("~one.count=1", "a deletion has no value"),
        ("~two.name", "there is no key two.name to delete"),
        ("one.count={", "its value cannot be read"),
    ],
)
def test_a_word_that_changes_nothing_says_why(word, fault):
    sections = {"one": {"count": 1}}
    assert fault in change_key(sections, word)
    assert sections == {"one": {"count": 1}}


def test_all_faults_are_found_at_once_and_a_section_may_be_absent():
    sections = {"one": {"count": -1, "nam": "x"}, "three": {}, "two": None}
    read, problems, wrong = read_sections("mine.yaml", sections, DECLARED, may_be_absent={"two"})
    assert read == {"one": One(), "two": None} and wrong == {"one.count", "one.nam"}
    assert len(problems) == 3 and all(problem.startswith("mine.yaml: ") for problem in problems)
    assert read_sections("x", {}, DECLARED) == ({"one": One(), "two": Two()}, [], set())


def test_a_wrong_key_leaves_the_others_of_its_section_and_has_the_value_of_the_placeholder():
    sections = {"one": {"count": -1, "name": "x"}, "two": []}
    read, _, wrong = read_sections("x", sections, DECLARED, placeholders={"one": One(count=7)})
    assert (read, wrong) == ({"one": One(name="x", count=7)}, {"one.count"})


@pytest.mark.parametrize(
    ("text", "fault"), [("[1]", "must be a mapping"), ("{", "cannot be read"), (None, "cannot be read")]
)
def test_a_file_that_holds_no_sections_is_refused_by_its_name(tmp_path, text, fault):
    file = tmp_path / "mine.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(PlanError, match=fault) as refused:
        load_sections(file, DECLARED)
    assert str(file) in str(refused.value)
