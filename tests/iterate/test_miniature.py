"""Agentic-R in miniature: its recipes pass the loop's own checks, the arms differ in the retriever alone, and
the page says what held."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml

from examples.agentic_r import loops, recall
from examples.agentic_r.loop_inputs import LoopInputs
from examples.agentic_r.loop_settings import runs_hash
from examples.agentic_r.loops import finished_loops, run_arm
from examples.agentic_r.markdown import claims_of, draw, markdown, variants_table
from examples.agentic_r.warm_start import PROTOCOL, warm_start_hash
from examples.common.small_encoder import make_encoder
from rag_r1.demo.policy import policy_path
from rag_r1.iterate.checks import find_problems
from rag_r1.iterate.plan import read_plan
from rag_r1.iterate.steps import Loop
from rag_r1.runs.errors import RunError
from rag_r1.system.child_processes import free_port


def row(after: str, em: float, searches: float) -> dict:
    return {"after": after, "em": {"value": em}, "searches": {"value": searches}}


def run_of(arm: str, seed: int, *rows: dict) -> dict:
    recall = {"first": {"recall@1": 0.0, "recall@3": 0.5}, "round 1": {"recall@1": 0.9, "recall@3": 1.0}}
    form = {"made_of": runs_hash(), "rounds": 2}
    return {"arm": arm, "seed": seed, **form, "rows": list(rows), "recall": recall}


@pytest.fixture(scope="module")
def ground(tmp_path_factory) -> LoopInputs:
    """A seed's folder, with the embedded policy in the place of the warm start."""
    out = tmp_path_factory.mktemp("miniature")
    (out / f"warm-{warm_start_hash()}").symlink_to(policy_path(PROTOCOL))
    return LoopInputs.make(out, 0)


@pytest.mark.slow  # an index is built
def test_both_recipes_pass_the_checks_of_the_loop_and_differ_in_the_retriever_alone(ground):
    plans = {}
    for arm in ("loop", "control"):
        path = ground.write_recipe(arm, 0)
        assert find_problems(read_plan(path)) == []
        plans[arm] = yaml.safe_load(path.read_text())
    assert plans["loop"].pop("data") and plans["loop"].pop("retriever")
    assert plans["loop"] == plans["control"]


@pytest.mark.slow
def test_until_the_first_retriever_both_arms_have_the_same_steps_with_the_same_settings(ground):
    steps = {}
    for arm in ("loop", "control"):
        loop_steps = Loop(read_plan(ground.write_recipe(arm, 0)), ground.folder / arm, 2).steps()
        steps[arm] = [(step.name, step.settings, step.needs) for step in loop_steps[:3]]
    assert steps["loop"] == steps["control"]
    names = [name for name, *_ in steps["loop"]]
    assert names == ["start/evaluation", "round1/agent", "round1/agent_evaluation"]


@pytest.mark.slow
def test_the_ground_is_made_once_and_one_of_another_form_is_refused(ground):
    modified = (ground.folder / "index" / "manifest.json").stat().st_mtime_ns
    assert LoopInputs.make(ground.folder.parent, 0) == ground
    assert (ground.folder / "index" / "manifest.json").stat().st_mtime_ns == modified
    (ground.folder / "made_of").write_text("another\n")
    with pytest.raises(RunError, match="made_of was .* and is now .*choose another --out"):
        LoopInputs.make(ground.folder.parent, 0)
    (ground.folder / "made_of").write_text(f"{runs_hash()}\n")


def test_the_control_begins_with_the_first_steps_of_its_loop(tmp_path, monkeypatch):
    started = []

    def run_child(words):
        started.append(words)
        return 1

    monkeypatch.setattr(loops, "run_child", run_child)
    ground = LoopInputs(tmp_path / "seed0", tmp_path / "policy", tmp_path / "encoder")
    with pytest.raises(RunError, match="loop is not finished"):
        run_arm(ground, "control", 0, 2)
    for name in ("start/evaluation", "round1/agent", "round1/agent_evaluation", "round1/data"):
        (ground.folder / "loop" / name).mkdir(parents=True)
    (ground.folder / "loop" / "arm.json").write_text('{"rounds": 2}')
    with pytest.raises(
        RunError, match="loop was begun with .*rounds was 2 and is now 3.*choose another --out"
    ):
        run_arm(ground, "control", 0, 3)
    with pytest.raises(RunError, match="ended with status 1"):
        run_arm(ground, "control", 0, 2)
    assert started[0][started[0].index("--rounds") + 1] == "3"
    kept = {path.name for path in (ground.folder / "control" / "round1").iterdir()}
    assert kept == {"agent", "agent_evaluation"}


def test_a_server_that_does_not_answer_is_an_error_with_the_index(tmp_path, monkeypatch):
    nothing = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setattr(recall, "retrieval_process", lambda *_: nullcontext(nothing))
    with pytest.raises(RunError, match=f"{tmp_path} did not answer .*run the command again"):
        recall.recall_of(tmp_path, [], None, "plain")


@pytest.mark.parametrize(
    ("em", "searches", "verdict"),
    [
        (0.9, 1.5, "EM +0.80, -0.50 searches a question: held"),
        (0.2, 1.5, "EM +0.10, -0.50 searches a question: held"),
        (0.15, 1.5, "EM +0.05, -0.50 searches a question: missed"),
        (0.9, 2.0, "EM +0.80, +0.00 searches a question: missed"),
    ],
)
def test_the_claim_needs_a_gain_and_fewer_searches(em, searches, verdict):
    runs = [
        run_of("loop", 3, row("start", 0.1, 2.0), row("round 3, agent", em, searches)),
        run_of("control", 3, row("start", 0.1, 2.0), row("round 3, agent", 0.1, 2.0)),
    ]
    assert list(map(str, claims_of(runs))) == [f"seed 3: {verdict}"]
    assert claims_of(runs[:1]) == []


@pytest.mark.slow  # the first picture of a process
def test_the_page_has_the_recall_of_the_index_that_is_served_and_a_picture(tmp_path: Path):
    rows = [row("start", 0.1, 2.0), row("round 1, agent", 0.2, 2.0), row("round 1, retriever", 0.8, 1.5)]
    for arm, of in (("loop", rows), ("control", rows[:2])):
        run = run_of(arm, 0, *of)
        folder = tmp_path / "seed0" / arm
        folder.mkdir(parents=True)
        (folder / "arm.json").write_text(json.dumps({k: v for k, v in run.items() if k != "recall"}))
        (tmp_path / "seed0" / "recall.json").write_text(json.dumps(run["recall"]))
    other = tmp_path / "seed1" / "loop" / "arm.json"
    other.parent.mkdir(parents=True)
    other.write_text(json.dumps(run_of("loop", 1, *rows) | {"made_of": "another"}))
    runs = finished_loops(tmp_path)
    assert [run["arm"] for run in runs] == ["loop", "control"]
    lines = markdown(runs).splitlines()
    assert "| 0 | loop | round 1, agent | 0.200 | 2.000 | 0.000 | 0.500 |" in lines
    assert "| 0 | loop | round 1, retriever | 0.800 | 1.500 | 0.900 | 1.000 |" in lines
    draw(runs, tmp_path / "agentic_r.png")
    assert (tmp_path / "agentic_r.png").stat().st_size > 10_000


def test_the_table_of_variants_has_a_line_for_each_seed_and_variant():
    claim = {"rows": 200, "recall@1": 0.9, "recall@3": 1.0, "em": 0.8, "searches": 1.5}
    lines = variants_table({0: {"plain": claim}, 1: {"plain": claim, "LR only": claim}}).splitlines()
    assert "| 0 | plain | 200 | 0.900 | 1.000 | 0.800 | 1.500 |" in lines
    assert sum(line.startswith(("| 0 |", "| 1 |")) for line in lines) == 3


def test_an_encoder_is_made_once(tmp_path: Path):
    pytest.importorskip("sentence_transformers")
    folder = make_encoder(tmp_path / "encoder")
    modified = (folder / "modules.json").stat().st_mtime_ns
    assert make_encoder(folder) == folder and (folder / "modules.json").stat().st_mtime_ns == modified
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder"]
