"""What the phases would start on a GPU: their trainings compose, and their estimates are the preflight's."""

from __future__ import annotations

import pytest

from benchmarks.gpu.estimate import estimate_of
from benchmarks.gpu.models import shape_for
from benchmarks.gpu.phases import PHASES, memory, resume
from benchmarks.gpu.plan import Plan
from benchmarks.gpu.runner import cells_of
from rag_r1.training.preflight.adapters import check_adapters
from rag_r1.training.preflight.cluster import check_batch_sizes
from rag_r1.training.preflight.memory.estimate import memory_of
from rag_r1.training.preflight.memory.formulas import CONTEXT, HELD
from tests.recipes.composed_recipes import composed, refusals, user_values

pytestmark = pytest.mark.slow  # composed recipes


def trainings(miniature: bool, folder) -> dict[str, tuple[str, tuple[str, ...]]]:
    """The recipe and all overrides of each training."""
    plan = Plan.of(folder, miniature=miniature)
    found = {}
    for name, phase in PHASES.items():
        for cell in cells_of(phase, plan):
            if (recipe := cell.settings.get("recipe")) is None:
                continue
            of_demo = [plan.platform, "trainer.n_gpus_per_node=1", "rag_r1.protocol=rag_r1_mq"]
            user = [] if recipe.endswith("sft") else user_values(folder)
            before = [] if recipe.startswith("real_small") else of_demo
            found[f"{name}/{cell.name}"] = recipe, (*user, *before, *cell.settings["overrides"])
    return found


@pytest.mark.parametrize("miniature", [True, False], ids=["miniature", "gpu"])
def test_every_training_composes_and_no_check_refuses_it(miniature, model_folder):
    started = trainings(miniature, model_folder)
    assert len(started) == (4 if miniature else 7)
    for recipe, overrides in started.values():
        config = composed(f"recipes/{recipe}", *overrides)
        if not recipe.endswith("sft"):
            assert refusals(config) == [] == [*check_batch_sizes(config), *check_adapters(config)]
        assert config.trainer.device == ("cpu" if miniature else "cuda")
    if miniature:  # of an override that is given twice, the last counts
        recipe, overrides = started["real_small/grpo"]
        assert composed(f"recipes/{recipe}", *overrides).trainer.val_before_train


def grid_config(settings: dict, folder, platform: str):
    data = user_values(folder)
    changes = [f"platform={platform}", "trainer.n_gpus_per_node=1", *data, *memory.overrides(settings)]
    recipe = {"lora": "hardware/one_gpu_80_grpo", "full": "rag_r1/grpo"}[settings["trained"]]
    return composed(f"recipes/{recipe}", *changes)


def grid(folder) -> list[dict]:
    return [cell.settings for cell in cells_of(memory, Plan(folder, folder, gpu_bytes=140e9))]


def test_the_estimate_is_the_preflights_with_one_context_instead_of_what_vllm_holds(model_folder):
    for settings in grid(model_folder):
        config, shape = grid_config(settings, model_folder, "gpu_sdpa"), shape_for(settings["size"])
        estimate, whole = estimate_of(config, shape, 80e9), memory_of(config, shape, 80e9)
        update = whole.phase_bytes("update") - HELD + CONTEXT
        assert estimate["forward and backward"] == pytest.approx(update)
        assert CONTEXT < estimate["load"] < estimate["optimizer step"] < update
        assert estimate["gather"] == pytest.approx(estimate["load"])
        kept = whole.phase_bytes("generation", "kept by other roles")
        assert estimate["waiting"] == CONTEXT + kept and (kept == 0) == settings["offload"]


def test_on_a_cpu_the_estimate_has_no_context(model_folder):
    settings = {"size": "tiny", "trained": "full", "offload": True, "tokens": 64}
    estimate = estimate_of(grid_config(settings, model_folder, "cpu"), shape_for("tiny"), 80e9)
    assert estimate["waiting"] == 0 and estimate["load"] == 4 * shape_for("tiny").parameters


def test_a_comparison_counts_equal_tensors_and_measures_the_distance_in_shares_of_the_change():
    import torch

    before = {"a": torch.zeros(2), "b": torch.zeros(2)}
    one = {"a": torch.tensor([3.0, 4.0]), "b": torch.zeros(2)}
    two = {"a": torch.tensor([3.0, 3.5]), "b": torch.zeros(2)}
    assert resume.compare(one, two, before) == {
        "tensors": 2,
        "equal": 1,
        "largest": 0.5,
        "of_change": pytest.approx(0.1),
    }
    assert resume.compare(before, before, before)["of_change"] is None, "nothing has changed"
