"""The checks of finished trainings are tried on changed ones: whatever is changed, a check must fail.

A training of each kind was recorded once: the files that its checks read are in `finished_runs/KIND.tar.xz`.
The tests of a module of checks see that they pass on the recorded run. Then each entry of a table changes one
thing in a copy, and names the check that must fail (`proofs`). To record a training anew, keep its folder and
pack it:

    pytest tests/chaos/test_training_tools.py --basetemp=kept
    python -m tests.e2e.mutations tools kept/tools0 [more names of files]
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import sys
import tarfile
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.e2e.left_behind import json_lines

RECORDED = Path(__file__).with_name("finished_runs")
#: The files of a training that some check reads.
READ = ("*.jsonl", "trajectories/**/*.jsonl", "**/latest_checkpointed_iteration.txt")
#: How a check fails. A metric that is not there is a KeyError.
FAILS = (AssertionError, KeyError)

Lines = list[Any]
#: Changes a run in its folder, or returns a changed one.
Change = Callable[[Any], Any]


def record(kind: str, out: Path, *more: str) -> None:
    """Pack the files of a finished training that the checks read."""
    with tarfile.open(RECORDED / f"{kind}.tar.xz", "w:xz", preset=9) as archive:
        for path in sorted({path for pattern in (*READ, *more) for path in out.glob(pattern)}):
            entry = archive.gettarinfo(path, str(path.relative_to(out)))
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            with path.open("rb") as file:
                archive.addfile(entry, file)


def unpack(kind: str, folder: Path) -> Path:
    """The folder of the recorded training of this kind, laid out in `folder`."""
    with tarfile.open(RECORDED / f"{kind}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def copied(run: Any, folder: Path) -> Any:
    """The same run in a folder of its own, where it can be changed."""
    return replace(run, out=Path(shutil.copytree(run.out, folder / "run")))


def write_lines(path: Path, rows: Iterable[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def lines(pattern: str, change: Callable[[Lines], Any]) -> Change:
    """Changes the lines of each file whose name has this pattern. Its time stays, since of two files of a
    step the later one counts."""

    def change_files(run: Any) -> None:
        paths = list(run.out.glob(pattern))
        assert paths, pattern
        for path in paths:
            time, rows = path.stat().st_mtime_ns, json_lines(path)
            change(rows)
            write_lines(path, rows)
            os.utime(path, ns=(time, time))

    return change_files


def each(change: Callable[[Any], Any]) -> Callable[[Lines], None]:
    """Changes every line."""

    def change_all(rows: Lines) -> None:
        for row in rows:
            change(row)

    return change_all


def metrics(name: str, step: int, **values: float | None) -> Change:
    """Sets metrics of a step, named in full or by their ends; None takes one away."""

    def change(entries: Lines) -> None:
        data = next(
            entry["data"] for entry in entries if entry["step"] == step and "search/samples" in entry["data"]
        )
        for end, value in values.items():
            (key,) = [end] if end in data else [key for key in data if key.endswith(end)]
            if value is None:
                del data[key]
            else:
                assert data[key] != value
                data[key] = value

    return lines(name, change)


def fields(**values: Any) -> Change:
    """Another value of what the run was handed over."""
    return lambda run: replace(run, **values)


def named(records: Iterable[dict[str, Any]], name: str) -> dict[str, Any]:
    """The record with this id."""
    return next(record for record in records if record["id"] == name)


def unmask(row: dict[str, Any]) -> None:
    """All of the row's response is trained on, observations too."""
    row["response_mask"] = [1] * len(row["responses"])


def searched(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The first of these rows with an observation."""
    return next(row for row in rows if {*row["response_mask"]} == {0, 1})


def rows_changed(
    lost: Callable, doubled: Callable | None = None, replaced: Callable | None = None
) -> dict[str, tuple[Change, Callable]]:
    """What can go wrong with rows of the actor, and the checks that must notice it; by default one does."""
    actor = partial(lines, "actor.jsonl")
    return {
        "a row is not trained on": (actor(lambda rows: rows.pop(0)), lost),
        "a row is trained on twice": (actor(lambda rows: rows.append(rows[0])), doubled or lost),
        "one row in the place of another": (actor(_in_the_place_of_another), replaced or lost),
    }


def _in_the_place_of_another(rows: Lines) -> None:
    rows[next(i for i, row in enumerate(rows) if row != rows[0])] = rows[0]


def change_tensors(model: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the weights of a model's folder."""
    from safetensors.torch import load_file, save_file

    path = model / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})


def copy_tokenizer(of: str, model: Path) -> None:
    """Put the tokenizer of another embedded policy into a model's folder."""
    from rag_r1.demo.policy import policy_path

    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(policy_path(of) / name, model)


def never_failing(module: ModuleType, failures: Iterable[BaseException]) -> list[str]:
    """The assertions of a module at which none of these failures happened, by line."""
    path, failed = Path(module.__file__), set()
    for failure in failures:
        frames = traceback.extract_tb(failure.__traceback__)
        failed.add([frame.lineno for frame in frames if frame.filename == str(path)][-1])
    source = path.read_text(encoding="utf-8")
    asserts = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert)]
    return [
        f"line {node.lineno}: {ast.get_source_segment(source, node)}"
        for node in asserts
        if not failed & set(range(node.lineno, node.end_lineno + 1))
    ]


def checks_of(module: ModuleType) -> set[Callable]:
    """All public functions of a module that return nothing: its checks."""
    return {
        f
        for name, f in vars(module).items()
        if getattr(f, "__module__", "") == module.__name__
        and not name.startswith("_")
        and getattr(f, "__annotations__", {}).get("return") == "None"
    }


def proofs(
    module: ModuleType,
    checks: Sequence[Callable],
    mutations: Mapping[str, tuple[Change, Callable] | tuple[Change, Callable, Change]],
    copy: Callable[[Any, Path], Any] = copied,
    fails: Any = FAILS,
) -> dict[str, Any]:
    """The tests of a module of checks, by name, for `globals().update`: the recorded run passes, each
    mutation is noticed, every assertion fails at one of them, every check has one. They use the module's
    fixture `finished`, the recorded run, and change what `copy` makes of it in a folder. A mutation is a
    change, the check that must fail (as `fails` says), and, for a check that passes on another run only, how
    to make that of the copy."""

    @pytest.fixture(scope="module")
    def failure(finished, tmp_path_factory):
        """How the check fails, by the name of the mutation; each is tried once."""

        @cache
        def failure(name: str) -> BaseException:
            change, check, *before = mutations[name]
            run = copy(finished, tmp_path_factory.mktemp("changed"))
            for prepare in before:
                run = prepare(run) or run
                check(replace(run))
            changed = change(run) or run
            with pytest.raises(fails) as raised:
                check(replace(changed))
            return raised.value

        return failure

    @pytest.mark.parametrize("check", checks, ids=lambda check: check.__name__)
    def test_a_run_in_order_passes(finished, check):
        check(finished)

    @pytest.mark.parametrize("mutation", mutations)
    def test_what_is_wrong_is_noticed(failure, mutation):
        failure(mutation)

    def test_every_assertion_of_a_check_fails_at_some_mutation(failure):
        assert not never_failing(module, map(failure, mutations))

    def test_every_check_has_a_mutation_and_none_is_left_out():
        assert {check for _, check, *_ in mutations.values()} == checks_of(module) >= set(checks)

    return {name: test for name, test in locals().items() if name.startswith(("test_", "failure"))}


if __name__ == "__main__":
    record(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
