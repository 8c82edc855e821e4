"""veRL's FSDP engine for a CPU, which writes down of every update of the actor which rows it was made of.

Chosen through veRL's own registry: `actor_rollout_ref.model.external_lib=tests.e2e.recording_updates`
loads this module and `VERL_ENGINE_VENDOR=recording_updates` picks this class. A line for each update goes to
`$RAG_R1_RECORD/updates.jsonl`: a list of its rows.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from verl.utils import tensordict_utils as tu
from verl.workers.engine import EngineRegistry

from rag_r1.plugin.cpu.engines import CPUEngineWithLMHead

NESTED = ("prompts", "responses", "response_mask", "loss_mask", "advantages")
#: There only if the run computes them.
IF_THERE = ("returns", "old_log_probs", "rollout_log_probs")


@EngineRegistry.register(
    model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu", vendor="recording_updates"
)
class RecordingLMHead(CPUEngineWithLMHead):
    """Writes one JSON line for each optimiser step, before it."""

    def train_batch(self, data, loss_function):
        names = [*NESTED, *(name for name in IF_THERE if name in data.keys())]
        columns = {name: [row.tolist() for row in data[name].unbind()] for name in names}
        columns |= {name: list(_plain(data, name)) for name in ("uid", "session_id")}
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        with (Path(os.environ["RAG_R1_RECORD"]) / "updates.jsonl").open("a") as file:
            file.write(json.dumps(rows) + "\n")
        return super().train_batch(data, loss_function)


def _plain(data, name):
    values = tu.get(data, name)
    return values.tolist() if hasattr(values, "tolist") else values
