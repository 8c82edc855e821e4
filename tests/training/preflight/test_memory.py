"""The estimate of memory: its formulas, the run that was measured, the guide, the preflight's warnings."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from rag_r1.options.problems import PreflightReport
from rag_r1.training import recipes_command
from rag_r1.training.command import main as train
from rag_r1.training.preflight import preflight
from rag_r1.training.preflight.memory.check import check_memory, estimate_of, gpu_bytes
from rag_r1.training.preflight.memory.estimate import memory_of
from rag_r1.training.preflight.memory.formulas import HELD, NF4_BYTES, SLACK, RoleMemory, cached_contexts
from rag_r1.training.preflight.memory.shape import SHAPES, shape_of
from tests.docs.fences import ROOT
from tests.recipes.composed_recipes import changed, composed

GUIDE = ROOT / "docs" / "guides" / "memory.md"
MEASURED = ROOT / "docs" / "results" / "gpu.md"
GRPO = "recipes/rag_r1/grpo"
#: The run of docs/results/gpu.md, on an H100 of 85.5 GB; up to 4 GB were other jobs'.
RUN = ("platform=gpu_sdpa", "trainer.n_gpus_per_node=1")
H100, OTHERS = 85.5e9, 4e9
#: Its phases, by the lines of the two pages. What the former formula gave is a record of the past.
PHASES = {
    "generation": ("generating 80 trajectories", "generating", 54.3),
    "log-probs": ("vLLM asleep, log-probabilities of the actor", "log-probabilities of the actor", None),
    "reference": ("log-probabilities of the reference", "log-probabilities of the reference", None),
    "update": ("update", "update", 35.1),
}


def rows(page: Path) -> dict[str, list[str]]:
    """The cells of the tables' lines, by their first; of two lines with one name the first."""
    lines = [line.strip("|").split("|") for line in page.read_text("utf-8").splitlines() if line[:2] == "| "]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in reversed(lines)}


def highest(phase: str) -> float:
    """Bytes of the whole GPU that were measured at the peak of a phase."""
    gib = rows(MEASURED)[PHASES[phase][0]][0]
    return float(gib.rpartition(" to ")[2]) * 2**30


# --- the run that was measured


@pytest.fixture(scope="module")
def measured_run():
    return memory_of(composed(GRPO, *RUN), SHAPES["1.5B"], H100)


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_each_phase_of_the_measured_run_is_within_15_percent(measured_run, phase: str):
    """With the other jobs' memory and without; two constants were fitted to three of the four phases."""
    calculated, seen = measured_run.phase_bytes(phase), highest(phase)
    assert calculated + OTHERS == pytest.approx(seen, rel=0.15)
    assert calculated == pytest.approx(seen - OTHERS, rel=0.15)


def test_what_is_held_is_fitted_to_the_phase_with_nothing_else():
    offloaded = float(rows(MEASURED)["the actor's weights offloaded"][0]) * 2**30
    assert HELD == pytest.approx(offloaded - OTHERS, rel=0.01)


@pytest.mark.slow
def test_the_allocators_share_is_fitted_to_the_three_phases_that_compute(measured_run):
    def largest(slack: float) -> float:
        deviations = []
        for name in ("log-probs", "reference", "update"):
            allocator = measured_run.phase_bytes(name, "allocator") * slack / SLACK
            size = measured_run.phase_bytes(name) - measured_run.phase_bytes(name, "allocator") + allocator
            deviations.append(abs(size / (highest(name) - OTHERS) - 1))
        return max(deviations)

    best = min((0.05 * step for step in range(20)), key=largest)
    assert SLACK == pytest.approx(best)


@pytest.mark.slow
def test_the_guide_compares_the_run_with_the_estimate_and_the_former_formula(measured_run):
    def deviations(gigabytes: float, seen: float) -> str:
        return f"{(gigabytes + 4) / seen - 1:+.0%}, {gigabytes / (seen - 4) - 1:+.0%}"

    for phase, (_, name, former) in PHASES.items():
        calculated, seen = measured_run.phase_bytes(phase) / 1e9, highest(phase) / 1e9
        expected = [f"{seen:.1f}", f"{seen - 4:.1f}", f"{calculated:.1f}", deviations(calculated, seen)]
        if former is None:
            expected += ["-", "-"]
        else:
            expected += [str(former), f"{former / seen - 1:+.0%}, {former / (seen - 4) - 1:+.0%}"]
        assert rows(GUIDE)[name] == expected


# --- the guide


COMMANDS = [
    shlex.split(command)
    for command in re.findall(
        r"^rag-r1 (recipes table .*)$", GUIDE.read_text("utf-8").replace("\\\n", ""), re.MULTILINE
    )
]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[5])
def test_the_guides_tables_are_what_their_commands_print(command: list[str], capsys):
    assert recipes_command.main(command[1:]) == 0
    printed = capsys.readouterr().out.strip()
    if "1.5B" in command:  # its page has the deviations instead
        assert f"| all | {rows(GUIDE)['generating'][2]} |" in printed
    else:
        assert printed in GUIDE.read_text("utf-8")


def test_the_guide_has_at_least_the_commands_of_one_size_of_all_and_of_adapters():
    assert len(COMMANDS) >= 4


def test_the_guides_tokens_are_what_is_calculated():
    for number in (10_240, 20_480, 40_960):
        roles = [RoleMemory(SHAPES["7B"], gpus=8, fused=fused) for fused in (False, True)]
        parts = [role.computing_parts(number, backward=True) for role in roles]
        whole = [
            HELD + role.parameter_parts["weights"] + role.optimizer_bytes + sum(part.values())
            for role, part in zip(roles, parts, strict=True)
        ]
        sizes = [f"{parts[0][name] / 1e9:.1f}" for name in ("activations", "logits")]
        assert rows(GUIDE)[f"{number:,}"] == [*sizes, *(f"{size / 1e9:.0f}" for size in whole)]


@pytest.mark.slow
def test_the_host_holds_twelve_bytes_of_a_trained_parameter_and_four_of_the_references():
    p = SHAPES["7B"].parameters
    assert memory_of(composed(GRPO), SHAPES["7B"]).host_bytes == pytest.approx(16 * p)
    assert memory_of(composed("recipes/rag_r1/ppo_mq"), SHAPES["7B"]).host_bytes == pytest.approx(28 * p)
    assert f"a critic 24 P: {24 * p / 1e9:.0f} GB for 7B" in GUIDE.read_text("utf-8")


# --- formulas


def test_frozen_weights_of_two_bytes_and_trained_ones_of_sixteen():
    shape = SHAPES["7B"]
    for each, adapters, expected in ((4, 0, 16), (2, 0, 8), (2, 1000, 2)):
        role = RoleMemory(shape, each, gpus=2, adapters=adapters)
        state = sum(role.parameter_parts.values()) + role.optimizer_bytes
        assert 2 * state / shape.parameters == pytest.approx(expected, rel=1e-4)


def test_weights_in_nf4_are_whole_on_each_gpu_and_their_adapters_in_32_bits():
    """nf4_bytes: facts of bitsandbytes' double quantisation; 7B takes 5.5 GB."""
    shape = SHAPES["7B"]
    one, two = (RoleMemory(shape, gpus=gpus, adapters=1000, nf4=True) for gpus in (1, 2))
    assert one.parameter_parts == two.parameter_parts and one.optimizer_bytes == 3 * 4 * 1000
    assert one.parameter_parts["weights"] == pytest.approx(5.5e9, rel=0.02)
    assert pytest.approx(0.5159, abs=1e-4) == NF4_BYTES


def test_fused_kernels_make_logits_independent_of_the_tokens():
    plain, fused = RoleMemory(SHAPES["7B"]), RoleMemory(SHAPES["7B"], fused=True)
    for role, grows in ((plain, True), (fused, False)):
        few, many = (role.computing_parts(tokens, backward=True)["logits"] for tokens in (1024, 2048))
        assert (many > few) is grows
    assert (
        RoleMemory(SHAPES["7B"], fused=True, is_critic=True).computing_parts(1024, backward=True)["logits"]
        == 0
    )


def test_the_allocator_wastes_memory_beside_fused_logits_even_of_few_tokens():
    parts = RoleMemory(SHAPES["7B"], fused=True).computing_parts(256, backward=True)
    assert parts.pop("allocator") == pytest.approx(SLACK * sum(parts.values()))


def test_only_pytorchs_attention_over_packed_rows_has_a_mask():
    assert RoleMemory(SHAPES["7B"], sdpa=True).computing_parts(1000, backward=False)["mask"] == 4e6
    assert RoleMemory(SHAPES["7B"]).computing_parts(1000, backward=False)["mask"] == 0


def test_two_gpus_of_a_replica_hold_twice_the_rows_until_each_has_one_head():
    shape = SHAPES["7B"]
    one, two, four, eight = (cached_contexts(shape, tp, 1e9, 1000) for tp in (1, 2, 4, 8))
    assert (two, four, eight) == pytest.approx((2 * one, 4 * one, 4 * one))


# --- phases of a recipe


@pytest.mark.slow
def test_a_role_that_is_not_offloaded_is_on_the_gpu_in_every_phase():
    keys = ("param", "optimizer")
    stays = [f"actor_rollout_ref.actor.fsdp_config.{key}_offload=false" for key in keys]
    moved, kept = (
        memory_of(composed("recipes/rag_r1/ppo_mq", *words), SHAPES["7B"]) for words in ([], stays)
    )
    state = 16 * SHAPES["7B"].parameters / 8
    for phase in ("generation", "critic"):
        assert kept.phase_bytes(phase) - moved.phase_bytes(phase) == pytest.approx(state)
    assert kept.phase_bytes("update") == moved.phase_bytes("update")


@pytest.mark.slow
def test_adapters_need_no_phase_of_the_reference_and_an_evaluation_no_update():
    adapters = memory_of(composed("recipes/agentic_rag/grpo_lora"), SHAPES["3B"])
    assert "reference" not in [phase.name for phase in adapters.phases]
    evaluation = memory_of(composed("recipes/checkpoints/evaluate"), SHAPES["7B"])
    assert [phase.name for phase in evaluation.phases] == ["generation", "weights to vLLM"]


# --- the preflight


CONFIG = {
    "model_type": "qwen2",
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "intermediate_size": 18_944,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152_064,
    "tie_word_embeddings": False,
}


def test_a_shape_is_read_from_a_config_json_unless_it_has_experts_or_lacks_a_size():
    assert shape_of(CONFIG, "7B") == SHAPES["7B"]
    assert shape_of({**CONFIG, "num_experts": 8}) is None
    assert shape_of({key: value for key, value in CONFIG.items() if key != "hidden_size"}) is None
    for size in ("many", 0, -1, 10**400, float("inf")):
        assert shape_of({**CONFIG, "vocab_size": size}) is None


@pytest.fixture
def run(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))

    def make(*overrides: str, **values):
        return changed(composed(GRPO, *overrides), actor_rollout_ref__model__path=str(tmp_path), **values)

    return make


@pytest.mark.slow
def test_a_phase_that_may_not_fit_is_a_warning_with_its_key_and_never_an_error(run):
    report = PreflightReport()
    problems = list(check_memory(run("trainer.n_gpus_per_node=2", "rag_r1.gpu_memory_gb=80"), report))
    assert {problem.level for problem in problems} == {"warning"}
    assert [problem.where for problem in problems] == ["actor_rollout_ref.actor.ppo_max_token_len_per_gpu"]
    assert "| update |" in report.tables[0].splitlines()[0]


@pytest.mark.slow
def test_a_cache_without_room_for_a_row_is_a_warning(run):
    (problem,) = check_memory(
        run("platform=gpu_sdpa", "actor_rollout_ref.rollout.gpu_memory_utilization=0.2"), PreflightReport()
    )
    assert problem.where == "actor_rollout_ref.rollout.gpu_memory_utilization" and "a row" in problem.what


@pytest.mark.slow
def test_the_gpu_is_the_recipes_else_this_machines_else_one_of_80_gb(run, nvidia_smi):
    assert gpu_bytes(run("rag_r1.gpu_memory_gb=24")) == 24e9
    nvidia_smi('$(case "$1" in *memory.total*) echo 81559;; *) echo 580.65;; esac)')
    assert gpu_bytes(run()) == 81_559 * 2**20
    nvidia_smi("no driver")
    assert gpu_bytes(run()) == 80e9


@pytest.mark.slow
def test_a_memory_that_is_no_number_is_reported_by_its_key_and_estimated_as_unknown(run, nvidia_smi):
    nvidia_smi("no driver")
    config = run("rag_r1.gpu_memory_gb=80GB")
    assert gpu_bytes(config) == 80e9
    assert "rag_r1.gpu_memory_gb" in {problem.where for problem in preflight(config).errors}


@pytest.mark.slow
def test_check_only_prints_the_table_even_if_something_else_is_wrong(run, tmp_path, capsys):
    run()
    words = [
        "--recipe",
        GRPO,
        f"actor_rollout_ref.model.path={tmp_path}",
        "rag_r1.retriever.url=http://127.0.0.1:9",
    ]
    assert train([*words, "--check-only"]) == 1
    printed = capsys.readouterr().out
    assert "| GB on a GPU | generation |" in printed and "fit into vLLM's cache" in printed
    assert train(words) == 1
    assert "| GB on a GPU |" not in capsys.readouterr().out


@pytest.mark.slow
def test_without_a_model_or_with_sizes_that_are_not_known_nothing_is_estimated(run, tmp_path):
    assert estimate_of(composed(GRPO)) is None
    assert estimate_of(run()) is not None
    (tmp_path / "config.json").write_text("{}")
    report = PreflightReport()
    assert [*check_memory(run(), report)] == [] == report.tables
