"""Recordings are equal if their files are, apart from the few named fields of the normaliser."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))
from recorded_runs.comparison import SUMMARY, compare_recordings  # noqa: E402
from recorded_runs.normaliser import FIELDS, MAX_FIELDS, Normaliser  # noqa: E402
from recorded_runs.workplace import Workplace, flags  # noqa: E402

RECORD = {"seconds": 0.1, "answer": "Rome", "commit": {"sha": "a"}, "url": "http://127.0.0.1:3801/v1"}
#: For each field of the normaliser: two texts that differ in it alone, and one that differs in more.
EXAMPLES = {
    "commit": ("| commit.sha | 12ab |", "| commit.sha | 34cd |", "| model.sha256 | 12ab |"),
    "seconds": ("1/2 data: done in 1 s", "1/2 data: done in 12 s", "1/3 data: done in 1 s"),
    "seconds in a table": (
        "| seconds a question | 0.1 [0.0, 0.2] |",
        "| seconds a question | 0.2 |",
        "| EM | 1 |",
    ),
    "seconds of a call": ("search: a  (0.10 s)", "search: a  (1.00 s)", "search: b  (0.10 s)"),
    "seconds in a log": (
        "answered, searches: 1, 0.1 s",
        "answered, searches: 1, 2.0 s",
        "answered, searches: 2, 0.1 s",
    ),
    "time of day": ("at 2026-11-25T03:02:50+00:00: a", "at 2026-11-26T13:02:51+00:00: a", "b"),
    "progress": (
        "\ra: 100%|##| 2/2 [00:01<00:00, 2q/s, right=0.5]a fault",
        "\ra: 0%| | 0/2 [00:00<?, ?q/s]\ra: 100%|##| 2/2 [00:01<00:00, 9q/s, right=0.5]a fault",
        "\ra: 100%|##| 2/2 [00:01<00:00, 2q/s, right=0.5]another",
    ),
    "progress without an end": (
        "a.jsonl: 0 rows [00:00, ? rows/s]\ra.jsonl: 15 rows [00:00, 9.5 rows/s]",
        "a.jsonl: 15 rows [00:01, 8 rows/s]\r        \r",
        "a.jsonl: 15 rows left out",
    ),
    "port": ("http://127.0.0.1:3801/v1", "http://127.0.0.1:41000/v1", "http://127.0.0.1:41000/v2"),
    "id": (f"chatcmpl-{'0a' * 16}: b", f"chatcmpl-{'1b' * 16}: b", f"chatcmpl-{'0a' * 16}: c"),
}


def _field(example: str) -> str:
    """The field that an example is for: several may be for one."""
    return next(entry.name for entry in FIELDS if example.startswith(entry.name))


def recorded(folder: Path, files: Mapping[str, str]) -> Path:
    """A recording with these files, as if it had been made in this folder."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    folder.mkdir(exist_ok=True)
    (folder / SUMMARY).write_text(json.dumps({"places": {str(folder): "<recording>"}, "runs": {}}))
    return folder


def differences(
    tmp_path: Path, capsys, old: Mapping[str, str], new: Mapping[str, str], **modules: str
) -> list[str]:
    """The lines about differences."""
    status = compare_recordings(recorded(tmp_path / "1", old), recorded(tmp_path / "22", new), modules, 99)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("DIFFERS ")]
    assert status == bool(lines)
    return [line.removeprefix("DIFFERS ") for line in lines]


def test_the_normaliser_has_few_fields_and_each_has_a_reason():
    assert len(FIELDS) + 2 <= MAX_FIELDS == 15
    assert all(entry.reason for entry in FIELDS) and len({entry.name for entry in FIELDS}) == len(FIELDS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_field_takes_away_what_it_names_and_nothing_else(name):
    first, second, other = EXAMPLES[name]
    normaliser = Normaliser()
    left, right = normaliser.normalise(first, second)
    assert left == right and normaliser.differing[_field(name)] == 1
    assert sum(normaliser.differing.values()) == 1
    left, right = normaliser.normalise(first, other)
    assert left != right


def test_every_field_that_has_a_pattern_has_an_example():
    assert {_field(name) for name in EXAMPLES} == {
        entry.name for entry in FIELDS if entry.pattern is not None
    }


def test_times_commits_ports_and_places_are_no_difference(tmp_path, capsys):
    later = RECORD | {"seconds": 2, "commit": None, "url": "http://127.0.0.1:99/v1"}
    old = {"eval/r.jsonl": json.dumps(RECORD) + "\n", "eval/log.txt": f"in {tmp_path / '1'}/x"}
    new = {"eval/r.jsonl": json.dumps(later) + "\n", "eval/log.txt": f"in {tmp_path / '22'}/x"}
    assert differences(tmp_path, capsys, old, new) == []


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({"answer": "Paris"}, "eval/r.json.answer: 'Rome'  ->  'Paris'"),
        ({"more": 1}, "eval/r.json.more: only in NEW"),
        ({"answer": None}, "eval/r.json.answer: 'Rome'  ->  None"),
        ({"url": "http://127.0.0.1:3801/v2"}, "eval/r.json.url: "),
    ],
)
def test_any_other_value_is_a_difference_with_its_place(tmp_path, capsys, changed, place):
    new = {"eval/r.json": json.dumps(RECORD | changed)}
    (line,) = differences(tmp_path, capsys, {"eval/r.json": json.dumps(RECORD)}, new)
    assert line.startswith(place)


def test_true_is_not_one_and_the_order_of_keys_counts(tmp_path, capsys):
    assert differences(tmp_path, capsys, {"a.json": "[1]"}, {"a.json": "[true]"}) == [
        "a.json[0]: 1  ->  True"
    ]
    both = ({"a.json": '{"a": 1, "b": 2}'}, {"a.json": '{"b": 2, "a": 1}'})
    assert differences(tmp_path, capsys, *both) == ["a.json: keys in another order"]


def test_a_file_that_is_lost_or_new_and_a_line_more_are_differences(tmp_path, capsys):
    old, new = {"a/1.txt": "x\ny", "a/2.txt": ""}, {"a/1.txt": "x\ny\nz", "a/3.txt": ""}
    assert differences(tmp_path, capsys, old, new) == [
        "a/1.txt: 2 entries, now 3",
        "a/1.txt[2]: '<missing>'  ->  'z'",
        "a/2.txt: only in OLD",
        "a/3.txt: only in NEW",
    ]


def test_parquet_is_compared_by_schema_and_rows_and_other_files_by_their_bytes(tmp_path, capsys):
    folders = [recorded(tmp_path / name, {}) for name in ("1", "22")]
    for folder, value, raw in zip(folders, (1, 2), (b"\xff\x00", b"\xff\x01"), strict=True):
        pq.write_table(pa.table({"n": [value]}), folder / "rows.parquet")
        (folder / "picture.png").write_bytes(raw)
    lines = differences(tmp_path, capsys, {}, {})
    assert [line.partition(":")[0] for line in lines] == ["picture.png.sha256", "rows.parquet.rows[0].n"]


def test_a_run_that_could_not_be_recorded_is_no_equal_run(tmp_path, capsys):
    folders = [recorded(tmp_path / name, {}) for name in ("1", "22")]
    runs = {"eval": {"fault": "OSError: no port"}, "help": {"fault": None}}
    for folder in folders:
        (folder / SUMMARY).write_text(json.dumps({"places": {}, "runs": runs}))
    assert compare_recordings(*folders, {}, 9) == 1
    assert f"DIFFERS {folders[0]}: eval was not recorded: OSError: no port\n" in capsys.readouterr().out


def test_names_of_moved_modules_are_one_if_the_renames_say_so(tmp_path, capsys):
    old, new = {"h.txt": "python -m p.tape"}, {"h.txt": "python -m p.io.store"}
    assert len(differences(tmp_path, capsys, old, new)) == 1
    assert differences(tmp_path, capsys, old, new, **{"p.tape": "p.io.store"}) == []


def test_a_command_is_kept_with_its_words_its_status_and_what_it_printed(tmp_path):
    place = Workplace(tmp_path)
    assert "usage: rag-r1 COMMAND" in place.rag_r1("--help")
    place.rag_r1("no-such-command")
    assert place.statuses == [0, 2]
    text = (tmp_path / "command-02.txt").read_text()
    assert text.startswith(
        "$ rag-r1 no-such-command\nstatus 2\n== stdout\n\n== stderr\nrag-r1: there is no command"
    )


def test_flags_without_a_value_are_left_out():
    assert flags({"out": "x", "in_flight": 1, "prompt": None}) == ["--out", "x", "--in-flight", "1"]


def run(folder: Path, *words: object) -> subprocess.CompletedProcess:
    """The script in a process of its own: it sets the environment, and imports much. TMPDIR: another
    recording may be under way."""
    script = [sys.executable, str(ROOT / "scripts" / "recorded_runs"), *map(str, words)]
    environment = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.run(script, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)


@pytest.mark.slow
def test_a_run_that_does_not_exist_is_refused_with_those_that_do(tmp_path):
    done = run(tmp_path, "record", tmp_path / "out", "--only", "evals")
    assert done.returncode == 1 and not (tmp_path / "out").exists()
    assert "there are no runs evals; there are help, rollouts, eval," in done.stderr


@pytest.mark.nightly
def test_two_recordings_of_this_commit_are_equal(tmp_path):
    for name in ("1", "22"):
        done = run(tmp_path, "record", tmp_path / name, "--only", "mcp", "serve")
        assert done.returncode == 0, done.stdout + done.stderr
    done = run(tmp_path, "compare", tmp_path / "1", tmp_path / "22")
    assert done.returncode == 0 and done.stdout.endswith("\nequal\n"), done.stdout
