"""The benchmark of other ways to compute an encoder: what it measures, and a small run of it."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from benchmarks.encoder_alternatives import main, mean_states, moved_by_others
from retrieval_server.encode.openvino_model import openvino_dtypes


def texts(number: int) -> dict:
    ids = torch.arange(number * 4).reshape(number, 4)
    return {"input_ids": ids, "attention_mask": (ids % 4 < 3).long()}


def states_of(features: dict) -> torch.Tensor:
    return torch.stack([features["input_ids"] + 1.0, torch.ones(features["input_ids"].shape)], dim=2)


def rounded_together(features: dict) -> torch.Tensor:
    states = states_of(features)
    scale = states.max() / 8
    return (states / scale).round() * scale


def test_padding_is_no_part_of_a_mean():
    (mean,) = mean_states(states_of, texts(1))
    torch.testing.assert_close(mean, torch.nn.functional.normalize(torch.tensor([2.0, 1.0]), dim=0))


def test_a_scale_for_the_whole_batch_shows():
    assert moved_by_others(states_of, texts(8)) == 0
    assert moved_by_others(rounded_together, texts(8)) > 0.01


def installed(*modules: str) -> bool:
    return all(map(importlib.util.find_spec, modules))


def left_out(lines: dict[str, str], printed: str, way: str) -> bool:
    """Whether the table lacks a way; then, and only then, a note says so, of the way or of its library."""
    noted = any(f"without {name}: " in printed for name in (way, way.rpartition(" ")[0]))
    assert (way in lines) != noted
    return noted


@pytest.mark.slow
def test_a_small_run_prints_a_line_for_each_way(towns, capsys):
    assert main([*towns, "--rounds", "1"]) == 0
    printed = capsys.readouterr().out
    lines = {line.split("|")[1].strip(): line for line in printed.splitlines() if line.startswith("| ")}
    assert lines["torch float32"].count(" 1.00 ") == 4 and " 1.00000 (1.00000) " in lines["torch float32"]
    assert "torch quantize_dynamic, a scale for the batch" in lines
    assert left_out(lines, printed, "ONNX Runtime float32") == (not installed("onnx", "onnxruntime"))
    computed = openvino_dtypes() if installed("openvino") else ()
    for dtype in ("float32", "bfloat16", "int8"):
        assert left_out(lines, printed, f"OpenVINO {dtype}") == (dtype not in computed)
