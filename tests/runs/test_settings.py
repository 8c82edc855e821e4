"""What counts as a changed setting."""

from __future__ import annotations

import pytest

from rag_r1.runs.errors import RunError
from rag_r1.runs.settings import changed_settings, flatten, json_roundtrip, read_marker, refuse_changes


def test_none_and_a_missing_key_are_the_same_and_values_are_compared_by_their_full_key():
    before = {"model": "a", "budget": {"turns": 4, "rows": {}}, "seed": None}
    now = json_roundtrip({"model": "a", "budget": {"turns": 5, "rows": {}}, "extra": None})
    assert changed_settings(flatten(before), flatten(now)) == {"budget.turns": (4, 5)}
    assert changed_settings(before, {**now, "budget": before["budget"]}) == {}


def test_tuples_and_paths_are_the_settings_that_they_become_in_json(tmp_path):
    assert json_roundtrip({"sizes": (1, 2), "path": tmp_path}) == {"sizes": [1, 2], "path": str(tmp_path)}


def test_a_refusal_names_each_change_and_the_remedy():
    refuse_changes("OUT", {"seed": 1}, {"seed": 1})
    with pytest.raises(RunError) as refused:
        refuse_changes("OUT", {"seed": 1, "size": 2}, {"seed": None, "size": 3}, "Choose another")
    assert str(refused.value) == (
        "OUT was begun with other settings: seed was 1 and is now None; size was 2 and is now 3. "
        "Choose another"
    )


def test_a_marker_that_cannot_be_looked_up_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(RunError, match="File name too long.*: choose another"):
        read_marker(tmp_path / ("x" * 300), "choose another")
