"""veRL's FSDP engine for a CPU, which writes down every batch that the actor is trained on.

Chosen through veRL's own registry: `actor_rollout_ref.model.external_lib=tests.e2e.recording_engine`
loads this module and `VERL_ENGINE_VENDOR=recording` picks this class. The rows go to
`$RAG_R1_RECORD/actor.jsonl`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from verl.workers.engine import EngineRegistry

from rag_r1.plugin.cpu.engines import CPUEngineWithLMHead

FIELDS = ("prompts", "responses", "response_mask", "loss_mask", "input_ids")


@EngineRegistry.register(
    model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu", vendor="recording"
)
class RecordingLMHead(CPUEngineWithLMHead):
    """Writes one JSON line for each row of each micro batch that has a backward pass."""

    def forward_step(self, micro_batch, loss_function, forward_only):
        if not forward_only:
            columns = [[row.tolist() for row in micro_batch[key]] for key in FIELDS]
            rows = [dict(zip(FIELDS, values, strict=True)) for values in zip(*columns, strict=True)]
            with (Path(os.environ["RAG_R1_RECORD"]) / "actor.jsonl").open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
        return super().forward_step(micro_batch, loss_function=loss_function, forward_only=forward_only)
