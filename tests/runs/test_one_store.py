"""What is kept in folders has one home: only rag_r1/io and rag_r1/runs rename, lock, append and compare."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STORE = ("rag_r1/io/", "rag_r1/runs/")
MODULES = [
    path
    for top in ("rag_r1", "data_process", "examples")
    for path in sorted((ROOT / top).rglob("*.py"))
    if not path.relative_to(ROOT).as_posix().startswith(STORE)
]
ALLOWED = {
    # Merges a checkpoint's shards by another program, into a folder that it names when that has ended.
    ("rag_r1/inference/model_folders/shard_merge.py", "a text that is not atomic"),
    ("rag_r1/inference/model_folders/shard_merge.py", "a rename"),
    # Trajectories of a training, of which several processes append to one file a step.
    ("rag_r1/agent/records.py", "a file that grows"),
    # Gzip members, cut back to the last one that was recorded.
    ("data_process/split_kilt_to_100.py", "a file that grows"),
}
#: Files by which work that was killed goes on.
NAMES = {"provenance.json", "begun.json", "done.json", "exchanges.ndjson"}
MARKERS = {"fingerprint", "made_from", "hash"}
LOCKS = {"lock_descriptor", "flock", "lockf", "FileLock", "SoftFileLock"}
#: Only modules with one of these are parsed.
TRACES = re.compile(
    rf"{'|'.join(LOCKS)}|fcntl|filelock|\.rename|\.replace\(|\.write_|settings|overrides|and is now"
    rf"|open_to_append|append_whole|[\"'](ab|a\+b|{'|'.join(map(re.escape, sorted(NAMES | MARKERS)))})[\"']"
)


def own_ways(source: str) -> Iterator[str]:
    """What a module does by itself that the store does."""
    for node in ast.walk(ast.parse(source)) if TRACES.search(source) else ():
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name("os"), attr="replace" | "rename" | "renames")):
                yield "a rename"
            # Path.rename, and Path.replace: str.replace has two arguments, dataclasses.replace has keywords.
            case ast.Call(func=ast.Attribute(attr="rename" | "replace"), args=[_], keywords=[]):
                yield "a rename"
            case ast.Call(func=ast.Attribute(attr="write_text" | "write_bytes")):
                yield "a text that is not atomic"
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.alias(name=name) if name in LOCKS:
                yield "a lock"
            case ast.Import(names=[ast.alias("fcntl" | "filelock")]) | ast.ImportFrom("fcntl" | "filelock"):
                yield "a lock"
            case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq()], comparators=[right]):
                if is_settings(left) or is_settings(right):
                    yield "a comparison of settings"
                if is_marker(left) or is_marker(right):
                    yield "a marker"
            case ast.Name("open_to_append" | "append_whole") | ast.Constant("ab" | "a+b"):
                yield "a file that grows"
            case ast.Constant(value=str(name)) if name in NAMES:
                yield "a name of a run's files"
            case ast.JoinedStr() if " and is now " in ast.unparse(node):
                yield "a comparison of settings"


def is_settings(node: ast.expr) -> bool:
    """Settings, or those of a document: `settings`, `x.settings`, `x["settings"]`, `x.get("settings")`."""
    match node:
        case ast.Name("settings" | "overrides") | ast.Attribute(attr="settings"):
            return True
        case ast.Subscript(slice=ast.Constant("settings" | "overrides")):
            return True
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant("settings" | "overrides"), *_]):
            return True
    return False


def is_marker(node: ast.expr) -> bool:
    """What a state was made from: `state["fingerprint"]`, `state.get("made_from")`."""
    match node:
        case (
            ast.Subscript(slice=ast.Constant(name))
            | ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(name), *_])
        ):
            return name in MARKERS
    return False


def test_nothing_but_the_store_renames_locks_marks_appends_or_compares_settings():
    ways = {
        (path.relative_to(ROOT).as_posix(), way)
        for path in MODULES
        for way in own_ways(path.read_text(encoding="utf-8"))
    }
    assert ways - ALLOWED == set(), (
        "use rag_r1/io/atomic_files.py, and of rag_r1/runs lock.py, settings.py, state_file.py, json_lines.py"
    )
    assert ALLOWED <= ways, "what is not needed any more is not allowed any more"


@pytest.mark.parametrize(
    ("source", "way"),
    [
        ("os.replace(part, path)", "a rename"),
        ("part.rename(folder)", "a rename"),
        ("part.replace(folder)", "a rename"),
        ("path.write_text(text)", "a text that is not atomic"),
        ("fcntl.flock(file, 2)", "a lock"),
        ("from filelock import lock_descriptor", "a lock"),
        ('if before["settings"] != settings: pass', "a comparison of settings"),
        ('if state["fingerprint"] == fingerprint: pass', "a marker"),
        ('if state.get("made_from") != made_from: pass', "a marker"),
        ('part.open("ab")', "a file that grows"),
        ("file = open_to_append(path)", "a file that grows"),
        ('write_json(out / "done.json", {})', "a name of a run's files"),
        ('told = f"{key} was {was!r} and is now {now!r}"', "a comparison of settings"),
    ],
)
def test_a_way_of_its_own_is_found(source: str, way: str):
    assert way in set(own_ways(source))


def test_what_looks_alike_is_left():
    assert list(own_ways('text.replace("a", "b"); replace(row, split="x"); moment.replace(hour=1)')) == []
