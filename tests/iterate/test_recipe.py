"""The recipe of the paper's loop is whole: each command takes its options."""

from __future__ import annotations

from pathlib import Path

from rag_r1.config.recipes import RECIPES
from rag_r1.iterate.checks import find_problems
from rag_r1.iterate.plan import read_plan
from rag_r1.iterate.steps import Loop

RECIPE = RECIPES / "agentic_r" / "iterate.yaml"


def test_nothing_is_wrong_with_it_but_the_files_that_a_user_brings(monkeypatch):
    monkeypatch.chdir(RECIPES.parent)
    plan = read_plan(RECIPE)
    missing = find_problems(plan)
    files = ("evaluation.questions:", "data.questions:", "index.corpus:", "index.first:", "agent.model:")
    assert [problem.split()[0] for problem in missing] == list(files)
    with_judge = ["data.options.judge_url=http://127.0.0.1:8001/v1", "data.options.judge_model=judge"]
    assert find_problems(read_plan(RECIPE, with_judge)) == missing
    assert len(find_problems(read_plan(RECIPE, with_judge[:1]))) == len(missing) + 1


def test_both_models_start_from_their_base_in_each_of_two_rounds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("data/agentic_r/train.parquet", "data/agentic_r/test.parquet", "indexes/e5/manifest.json"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("")
    Path("wiki-18.jsonl.gz").write_text("")
    recipes = Path("recipes")
    recipes.symlink_to(RECIPES)
    steps = {step.name: step for step in Loop(read_plan(RECIPE), tmp_path / "out", 2).steps()}
    for name in ("round1/agent", "round2/agent", "round3/agent"):
        words = steps[name].command("URL")
        assert f"actor_rollout_ref.model.path='{tmp_path}/models/Qwen2.5-7B'" in words
    second = steps["round2/retriever"].command("URL")
    assert second[second.index("--model") + 1] == "intfloat/e5-base-v2", "the recipe's"
    assert second[second.index("--nproc-per-node") + 1] == "8"
