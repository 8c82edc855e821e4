"""Files of the same form as those of a real training, made by hand, and spoilt one at a time.

The trajectories are the demo's traces of questions about one small world. The unit tests of the checks lay
them out as a run, and see that the checks pass; then they spoil a copy in one way and see that the check
named for it fails.
"""

from __future__ import annotations

import ast
import json
import os
import random
import shutil
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from transformers import AutoTokenizer

from rag_r1.agent import Turn
from rag_r1.demo import policy, traces, world
from rag_r1.demo.search import WorldSearch
from tests.e2e.left_behind import json_lines

PROTOCOL = world.demo_protocol("rag_r1_mq")
#: How a check fails. A metric that is not there is a KeyError.
FAILS = (AssertionError, KeyError)

Lines = list[Any]


@dataclass(frozen=True)
class Played:
    """Finished trajectories: the row on which the actor is trained, and the record, of each."""

    passages: list[dict[str, str]]
    rows: list[dict[str, Any]]
    records: list[dict[str, Any]]


def play(groups: int, group: int = 1, tokenizer: Any = None) -> Played:
    """`groups` times `group` trajectories, named `q<group>#<number>`, with different texts. The tokenizer is
    that of the demo's policy."""
    tokenizer = tokenizer or AutoTokenizer.from_pretrained(policy.policy_path("rag_r1_mq"))
    small = world.make_world(0, "train", people=20, places=10, words=12)
    search, rng = WorldSearch(small.passages), random.Random(0)
    rows, records = [], []
    for i, question in enumerate(world.make_questions(small, groups * group, 0)):
        strategy = rng.choice(["sequential", "parallel", "early"])
        trace = traces.write_trace(question, strategy, small, PROTOCOL, search.results, rng)
        ids, mask = policy.encode_trace(tokenizer, PROTOCOL, PROTOCOL.messages(question.text), trace)
        start = mask.index(1)
        row = {"prompts": ids[:start], "responses": ids[start:], "response_mask": mask[start:]}
        rows.append({**row, "loss_mask": mask, "input_ids": ids})
        turns = [segment.text for segment in trace if segment.generated]
        asked = [PROTOCOL.parse(text).queries for text in turns[:-1]]
        found = [search.results(queries) for queries in asked]
        turns = [
            Turn.searched(text, queries, documents).to_dict()
            for text, queries, documents in zip(turns, [*asked, ()], [*found, ()], strict=True)
        ]
        record = {"id": f"q{i // group}#{i % group}", "protocol": PROTOCOL.name, "turns": turns}
        records.append({**record, "rewards": {"score": 1.0}, "failures": [], "retries": 0})
    return Played(small.passages, rows, records)


def write_lines(path: Path, rows: Iterable[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_metrics(path: Path, steps: Mapping[int, Mapping[str, float]]) -> None:
    """As veRL's file logger writes them."""
    write_lines(path, [{"step": step, "data": data} for step, data in steps.items()])


def write_records(
    out: Path, records: Iterable[dict[str, Any]], step: int, process: int = 1, split: str = "train"
) -> None:
    """The records of a step, as a process of this number dumps them in the split."""
    path = out / "trajectories" / split / f"step_{step:06d}-{process}.jsonl"
    write_lines(path, [{**record, "step": step} for record in records])


def by_step(items: Sequence[Any], size: int) -> dict[int, Sequence[Any]]:
    """`size` of them in each step, from step 1."""
    return {1 + start // size: items[start : start + size] for start in range(0, len(items), size)}


def write_run(
    out: Path,
    rows: Iterable[dict[str, Any]],
    records: Mapping[int, Iterable[dict[str, Any]]],
    logged: Mapping[int, Mapping[str, float]],
    name: str = "metrics",
) -> None:
    """What a training leaves behind: what the actor was trained on, the records and the metrics by step."""
    write_lines(out / "actor.jsonl", rows)
    for step, of_step in records.items():
        write_records(out, of_step, step)
    write_metrics(out / f"{name}.jsonl", logged)


def copied(run: Any, folder: Path, **changes: Any) -> Any:
    """The same run in a folder of its own, where it can be spoilt."""
    return replace(run, out=Path(shutil.copytree(run.out, folder / "run")), **changes)


def edit(path: Path, change: Callable[[Lines], Any]) -> None:
    """Change the lines of a file. Its time stays, since of two files of a step the later one counts."""
    time, lines = path.stat().st_mtime_ns, json_lines(path)
    change(lines)
    write_lines(path, lines)
    os.utime(path, ns=(time, time))


def lines(name: str, change: Callable[[Lines], Any]) -> Callable[[Any], None]:
    """Spoils a file of lines; `name` may be a pattern."""

    def spoil(run: Any) -> None:
        found = list(run.out.glob(name))
        assert found, name
        for path in found:
            edit(path, change)

    return spoil


def metrics(name: str, step: int, **values: float | None) -> Callable[[Any], None]:
    """Sets metrics of a step, named by their ends; None takes one away."""

    def change(entries: Lines) -> None:
        (data,) = (entry["data"] for entry in entries if entry["step"] == step)
        for end, value in values.items():
            key = next(key for key in data if key.endswith(end))
            if value is None:
                del data[key]
            else:
                assert data[key] != value
                data[key] = value

    return lines(name, change)


def unmask(row: dict[str, Any]) -> None:
    """All of the row's response is trained on, observations too."""
    row["response_mask"] = [1] * len(row["responses"])


def searched(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The first of these rows with an observation."""
    return next(row for row in rows if not all(row["response_mask"]))


def rows_spoilt(
    lost: Callable, doubled: Callable | None = None, replaced: Callable | None = None
) -> dict[str, tuple[Callable, Callable]]:
    """What can go wrong with rows of the actor, and the checks that must notice it; by default one does."""
    actor = partial(lines, "actor.jsonl")
    return {
        "a row is not trained on": (actor(list.pop), lost),
        "a row is trained on twice": (actor(lambda rows: rows.append(rows[0])), doubled or lost),
        "one row in the place of another": (
            actor(lambda rows: rows.__setitem__(1, rows[0])),
            replaced or lost,
        ),
    }


def change_tensors(model: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the weights of a model's folder."""
    from safetensors.torch import load_file, save_file

    path = model / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})


def copy_tokenizer(of: str, model: Path) -> None:
    """Put the tokenizer of another embedded policy into a model's folder."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(policy.policy_path(of) / name, model)


def fields(**values: Any) -> Callable[[Any], Any]:
    """Another value of what the run was handed over."""
    return lambda run: replace(run, **values)


def expect_failure(
    check: Callable[[Any], None], spoil: Callable[[Any], Any], copy: Any, fails: Any = FAILS
) -> BaseException:
    """The check passes on the copy, and fails once it is spoilt; returns how."""
    check(replace(copy))
    spoilt = spoil(copy)
    with pytest.raises(fails) as failure:
        check(replace(spoilt or copy))
    return failure.value


def never_failing(module: ModuleType, failures: Iterable[BaseException]) -> list[str]:
    """The assertions of a module at which none of these failures happened, by line."""
    path, failed = Path(module.__file__), set()
    for failure in failures:
        frames = traceback.extract_tb(failure.__traceback__)
        failed.add([frame.lineno for frame in frames if frame.filename == str(path)][-1])
    source = path.read_text(encoding="utf-8")
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert)]
    return [
        f"line {node.lineno}: {ast.get_source_segment(source, node)}"
        for node in found
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
    spoilings: dict[str, tuple[Callable, Callable]],
    copy: Callable[[Any, Path], Any] = copied,
    fails: Any = FAILS,
    alone: Mapping[Callable, Callable[[Any, Path], Iterable[BaseException]]] | None = None,
) -> dict[str, Callable]:
    """The tests of a module of checks, by name, for `globals().update`: a run in order passes, each spoiling
    is noticed, every assertion fails at one of them, every check has one. They use the fixture `written`, a
    run in order, and spoil what `copy` makes of it in a folder. `fails`: how a check must fail. `alone`:
    checks that need a run of another kind, and so have tests of their own; each with a function from a copy
    and a folder to its failures."""
    alone = alone or {}

    @pytest.mark.parametrize("check", checks, ids=lambda check: check.__name__)
    def test_a_run_in_order_passes(written, check):
        check(written)

    @pytest.mark.parametrize("what", spoilings)
    def test_what_is_wrong_is_noticed(written, tmp_path, what):
        spoil, check = spoilings[what]
        expect_failure(check, spoil, copy(written, tmp_path), fails)

    def test_every_assertion_of_a_check_fails_at_some_spoiling(written, tmp_path):
        failures = [
            expect_failure(check, spoil, copy(written, tmp_path / str(i)), fails)
            for i, (spoil, check) in enumerate(spoilings.values())
        ]
        for fail in alone.values():
            failures += fail(copy(written, tmp_path / fail.__name__), tmp_path)
        assert not never_failing(module, failures)

    def test_every_check_has_a_spoiling_and_no_check_is_left_out():
        assert {check for _, check in spoilings.values()} == set(checks)
        assert {*checks, *alone} == checks_of(module)

    return {name: test for name, test in locals().items() if name.startswith("test_")}
