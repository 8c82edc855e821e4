"""Saves a checkpoint with veRL's own manager, as an FSDP2 training of one process on a CPU does in its
warm-up: `python saved_checkpoint.py FOLDER RATE`."""

from __future__ import annotations

import sys
import tempfile

import torch
from torch.distributed.fsdp import fully_shard
from transformers import Qwen2Config, Qwen2ForCausalLM
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
from verl.utils.torch_functional import get_constant_schedule_with_warmup
from verl.workers.config.optimizer import FSDPOptimizerConfig, build_optimizer


def main(folder: str, rate: float) -> None:
    store = tempfile.NamedTemporaryFile()  # noqa: SIM115 - for as long as the process lives
    torch.distributed.init_process_group("gloo", init_method=f"file://{store.name}", rank=0, world_size=1)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 32}
    model = Qwen2ForCausalLM(Qwen2Config(**shape, num_attention_heads=2, num_key_value_heads=2))
    fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (1,)))
    optimizer = build_optimizer(model.parameters(), FSDPOptimizerConfig(lr=rate))
    scheduler = get_constant_schedule_with_warmup(optimizer, num_warmup_steps=10)
    for _ in range(3):
        model(torch.arange(8)[None]).logits.square().sum().backward()
        optimizer.step()
        scheduler.step()
    assert scheduler.get_last_lr() != [rate], "the rate of the moment is not that of the configuration"
    contents = {"save_contents": ["model", "optimizer", "extra"]}
    FSDPCheckpointManager(model, optimizer, scheduler, checkpoint_config=contents).save_checkpoint(folder, 3)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
