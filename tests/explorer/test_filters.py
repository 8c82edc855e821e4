"""Filters find what a plain loop over the records finds; no value of a parameter reaches the SQL as SQL."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.explorer import queries, texts
from rag_r1.explorer.filters import CHOICES, NAMES, RANGES, FilterError, Selection, selection_of
from rag_r1.explorer.rows import row_of
from rag_r1.explorer.schema import COLUMNS
from rag_r1.explorer.store import Store
from tests.explorer.made_records import (
    GOLD,
    answered,
    failed_search,
    lines,
    record,
    searched,
    training,
    write,
)

PASSAGES = ["Straße nach Köln", 'He said "no" \\ twice', "İstanbul, ÀÉ 北京", "100% of_it"]


def made() -> list[dict]:
    """Records that differ in everything that can be filtered by."""
    records = []
    for i in range(60):
        turns = [searched(f"query {i % 7}", [PASSAGES[i % 4]]) for _ in range(i % 4)]
        turns += [failed_search()] if i % 9 == 0 else []
        answer = [GOLD, "Paris", None][i % 3]
        one = (
            training(f"q{i}", i % 5, answer, turns=[*turns, answered(answer)])
            if i % 2
            else record(f"e{i}", answer)
        )
        one |= {
            "data_source": ["nq", "hotpotqa", "it's"][i % 3],
            "generated_tokens": i * 10,
            "seconds": i / 7,
        }
        if i % 11 == 0:
            one["rewards"] = {"score": None, "em": None}
        records.append(one)
    return records


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        write(folder / "runs" / "run" / "a.jsonl", made())
        with closing(Store([folder / "runs"])) as opened:
            opened.refresh()
            yield opened


ROWS = [row_of(one, "run", None) for one in made()]


def choices(name: str) -> list[str]:
    values = {row[name] for row in ROWS} if name != "group" else {row[name] for row in ROWS[:5]}
    return [*sorted("none" if value is None else value for value in values), "nothing like it", "'"]


TEXTS = ["straße", "KÖLN", '"no" \\', "İSTANBUL", "北京", "%", "_", "query 3", "", "paris", "contents", "'"]
FILTERS = st.dictionaries(
    st.sampled_from(sorted(NAMES)),
    st.integers(0, 10**6),
    max_size=3,
)


def values_of(name: str, seed: int) -> list[str]:
    """One or two values of a filter."""
    if name in CHOICES:
        known = choices(name)
        return [known[seed % len(known)], known[seed // 7 % len(known)]][: 1 + seed % 2]
    if name in ("right", "masked"):
        known = ["true", "false", "none"][: 3 if name == "right" else 2]
        return [known[seed % len(known)], known[seed // 7 % len(known)]][: 1 + seed % 2]
    if name == "text":
        return [TEXTS[seed % len(TEXTS)], TEXTS[seed // 7 % len(TEXTS)]][: 1 + seed % 2]
    return [str([seed % 6, seed % 600, 0.5, -1][seed % 4])]


def holds(row: dict[str, Any], name: str, values: list[str]) -> bool:
    """The filter in plain Python."""
    if name in CHOICES:
        return row[name] in values or (name == "cause" and row[name] is None and "none" in values)
    if name in ("right", "masked"):
        return {True: "true", False: "false", None: "none"}[row[name]] in values
    if name == "text":
        texts = ["\n".join(row["texts"]).lower(), *(text.lower() for text in row["passages"])]
        return any(value.lower() in text for value in values for text in texts)
    value, limit = row[RANGES[name.rpartition("_")[0]]], float(values[0])
    return value is not None and (value >= limit if name.endswith("_min") else value <= limit)


@given(seeds=FILTERS)
def test_filters_find_what_a_loop_over_the_records_finds(store, seeds):
    wanted = {name: values_of(name, seed) for name, seed in seeds.items()}
    selection = selection_of((name, value) for name, values in wanted.items() for value in values)
    with store.cache.connection() as connection:
        found = queries.trajectories(connection, selection, "tid", False, 0, 500)
    expected = [row for row in ROWS if all(holds(row, name, values) for name, values in wanted.items())]
    assert [row["id"] for row in found["rows"]] == [row["id"] for row in expected]
    assert (found["total"], found["right"], found["wrong"]) == (
        len(expected),
        sum(row["right"] is True for row in expected),
        sum(row["right"] is False for row in expected),
    )


@pytest.mark.parametrize("name", [name for name in COLUMNS if name not in ("golds", "reward_terms", "tid")])
@pytest.mark.parametrize("descending", [False, True])
def test_rows_are_sorted_by_any_column_without_a_value_last(store, name, descending):
    with store.cache.connection() as connection:
        found = queries.trajectories(connection, Selection(), name, descending, 0, 500)["rows"]
    values = [row[name] for row in found if row[name] is not None]
    known = [row[name] for row in ROWS if row[name] is not None and name != "run"]
    assert values == sorted(values, reverse=descending) and (name == "run" or len(values) == len(known))
    assert all(row[name] is None for row in found[len(values) :])


def test_a_part_of_the_rows_is_a_part_of_all(store):
    with store.cache.connection() as connection:
        every = queries.trajectories(connection, Selection(), "seconds", True, 0, 500)["rows"]
        part = queries.trajectories(connection, Selection(), "seconds", True, 10, 7)
    assert part["rows"] == every[10:17] and part["total"] == len(ROWS)


@pytest.mark.parametrize("name", [*RANGES.values(), "prompt_tokens"])
def test_the_bins_of_a_number_hold_all_of_its_values(store, name):
    with store.cache.connection() as connection:
        bins = queries.histogram(connection, Selection(), name)["bins"]
    values = [(row[name], row["right"]) for row in ROWS if row[name] is not None]
    is_whole = COLUMNS[name] == "BIGINT"
    for i, one in enumerate(bins):
        last = i == len(bins) - 1
        inside = [
            right
            for value, right in values
            if one["lo"] <= value and (value <= one["hi"] if is_whole or last else value < one["hi"])
        ]
        if is_whole:
            assert (one["n"], one["right"]) == (len(inside), inside.count(True))
    assert sum(one["n"] for one in bins) == len(values)


def test_the_bin_of_a_single_value_begins_and_ends_with_it(read, tmp_path):
    write(tmp_path / "one.jsonl", [record(name, rewards={"score": 0.85}) for name in "ab"])
    with read(tmp_path).cache.connection() as connection:
        bins = queries.histogram(connection, Selection(), "score")["bins"]
    assert [(one["lo"], one["hi"], one["n"]) for one in bins] == [(0.85, 0.85, 2)]


@pytest.mark.parametrize("name", ["status", "source", "right", "cause", "masked"])
def test_the_values_of_a_text_are_counted(store, name):
    with store.cache.connection() as connection:
        values = queries.histogram(connection, Selection(), name)["values"]
    expected = {}
    for row in ROWS:
        n, right = expected.get(row[name], (0, 0))
        expected[row[name]] = n + 1, right + (row["right"] is True)
    assert {value: (n, right) for value, n, right in values} == expected


ATTACKS = [
    "'",
    '"; DROP TABLE trajectories; --',
    "' OR 1=1 --",
    "1) OR (1=1",
    "\0",
    "\\",
    "NaN",
    "1e999",
    "x" * 5000,
]


@pytest.mark.parametrize("attack", ATTACKS, ids=range(len(ATTACKS)))
@pytest.mark.parametrize("name", sorted(NAMES))
def test_no_value_of_a_filter_is_run_as_sql(store, name, attack):
    try:
        selection = selection_of([(name, attack)])
    except FilterError as error:
        assert name in str(error) and len(str(error)) < 200
        return
    with store.cache.connection() as connection:
        found = queries.trajectories(connection, selection, "tid", False, 0, 10)
        assert found["total"] == sum(holds(row, name, [attack]) for row in ROWS)
        assert connection.execute("SELECT count(*) FROM trajectories").fetchall() == [(len(ROWS),)]


@pytest.mark.parametrize(
    "query",
    ["nothing=1", "right=yes", "masked=none", "step_min=", "step_min=1&step_min=2", "score_max=inf", "tid=1"],
)
def test_a_filter_that_cannot_be_used_is_named(query):
    with pytest.raises(FilterError, match=query.partition("=")[0]):
        selection_of(parse_qsl(query, keep_blank_values=True))


def test_too_many_values_are_refused():
    with pytest.raises(FilterError):
        selection_of([("run", "a")] * 1000)


def test_an_empty_selection_has_no_bins(store):
    nothing = selection_of([("run", "no such run")])
    with store.cache.connection() as connection:
        assert queries.histogram(connection, nothing, "score") == {"column": "score", "bins": []}
        assert queries.causes(connection, nothing) == {"causes": [], "failures": 0}


def test_the_example_of_this_module_has_every_kind_of_value(tmp_path: Path):
    assert {row["right"] for row in ROWS} == {True, False, None}
    assert {row["masked"] for row in ROWS} == {True, False} and len({row["cause"] for row in ROWS}) > 3
    assert all(math.isfinite(row["seconds"]) for row in ROWS)


def test_a_text_is_found_wherever_the_parts_of_a_long_one_are_cut(read, tmp_path):
    words = " ".join(f"word{i:05d}" for i in range(4000))
    long = [record("question", question=words), record("passage", turns=[searched("x", ["a", words])])]
    write(tmp_path / "long.jsonl", [*long, record("short")])
    with read(tmp_path).cache.connection() as connection:
        for begin in range(0, len(words) - 500, 1999):
            selection = selection_of([("text", words[begin : begin + 500])])
            found = queries.trajectories(connection, selection, "tid", False, 0, 10)
            assert [row["id"] for row in found["rows"]] == ["question", "passage"]


def test_a_passage_is_kept_once_and_found_in_every_trajectory_that_was_shown_it(read, tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "_MAX_RECENT", 3)
    path = write(tmp_path / "a.jsonl", [record("a"), record("b"), record("c", turns=[])])
    store = read(tmp_path)
    assert store.query("SELECT count(*) FROM passages") == [(1,)]
    many = [record(f"d{i}", turns=[searched("x", [f"passage {i}"])]) for i in range(9)]
    write(path, [*many, record("e"), *many], append=True)
    store.refresh()
    for text, found in (("painter mara", ["a", "b", "e"]), ("passage 7", ["d7"])):
        with store.cache.connection() as connection:
            answer = queries.trajectories(connection, selection_of([("text", text)]), "id", False, 0, 9)
        assert [row["id"] for row in answer["rows"]] == found


def test_the_texts_of_records_that_have_gone_are_not_found(read, tmp_path):
    path = write(tmp_path / "a.jsonl", [record("a"), record("b", turns=[searched("x", ["another passage"])])])
    store = read(tmp_path)
    path.write_bytes(lines([record("c", turns=[])]))
    store.refresh()
    assert store.query("SELECT count(*) FROM texts, trajectories WHERE texts.tid = trajectories.tid") == [
        (1,)
    ]
    assert store.query("SELECT count(*) FROM texts") == [(1,)]
    with store.cache.connection() as connection:
        for text in ("another passage", "painter"):
            assert (
                queries.trajectories(connection, selection_of([("text", text)]), "id", False, 0, 9)["total"]
                == 0
            )
