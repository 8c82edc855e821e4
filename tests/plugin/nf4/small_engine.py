"""An engine over nf4 and a batch for it; run as a script, one rank of a group that takes a step."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict

ROWS = [[1, 5, 9, 2, 7, 30], [3, 3, 8, 40], [11, 12, 13, 14, 15], [20, 7, 1, 9, 9, 2, 4]]
RATE = 1e-2


def make_engine(folder: str, *, merge: bool = False, rank: int = 4, offload: bool = False, seed: int = 0):
    import verl  # noqa: F401  (loads the plugin)
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig

    from rag_r1.plugin.cpu.engines import CPUEngineWithLMHead
    from rag_r1.plugin.nf4.engine import NF4Mixin

    class Engine(NF4Mixin, CPUEngineWithLMHead):
        """As register.py makes it, without veRL's registry, which other tests share."""

    torch.manual_seed(seed)
    contents = ["model", "optimizer", "extra"]
    engine = Engine(
        HFModelConfig(
            path=folder, load_tokenizer=False, use_remove_padding=False, enable_gradient_checkpointing=True,
            override_config={"attn_implementation": "sdpa"}, lora_rank=rank, lora_alpha=16,
            lora={"merge": merge},
        ),
        FSDPEngineConfig(
            strategy="fsdp2", mixed_precision={"param_dtype": "fp32"}, use_torch_compile=False,
            param_offload=offload, optimizer_offload=offload, use_dynamic_bsz=False,
            micro_batch_size_per_gpu=2,
        ),
        FSDPOptimizerConfig(lr=RATE, total_training_steps=10),
        CheckpointConfig(save_contents=contents, load_contents=contents, save_lora_only=True),
    )  # fmt: skip
    engine.initialize()
    return engine


def batch(rows: list[list[int]]) -> TensorDict:
    """What veRL's worker gives an engine: rows of different lengths, in the loss all tokens but the first,
    whose log-probs stand at the place before."""
    from verl.utils import tensordict_utils as tu

    nested = lambda lists: torch.nested.as_nested_tensor(list(map(torch.tensor, lists)), layout=torch.jagged)  # noqa: E731
    data = TensorDict(
        {
            "input_ids": nested(rows),
            "position_ids": nested([list(range(len(row))) for row in rows]),
            "loss_mask": nested([[1] * (len(row) - 1) + [0] for row in rows]),
        },
        batch_size=[len(rows)],
    )
    settings = {"use_dynamic_bsz": False, "micro_batch_size_per_gpu": 2, "use_remove_padding": False}
    tu.assign_non_tensor(data, temperature=1.0, use_fused_kernels=False, calculate_entropy=False, **settings)
    return data


def loss(model_output: dict[str, Any], data: TensorDict, dp_group: Any = None) -> tuple[torch.Tensor, dict]:
    """The mean of -log p over the tokens of all ranks, scaled as veRL's losses are."""
    from verl.utils import tensordict_utils as tu

    tokens = tu.get_non_tensor_data(data, "batch_num_tokens", default=None)
    ranks = tu.get_non_tensor_data(data, "dp_size", default=1)
    kept = model_output["log_probs"].values() * data["loss_mask"].values()
    return -kept.sum() / tokens * ranks, {}


def train_step(engine: Any, rows: list[list[int]]) -> float:
    """One step; returns the norm of the gradients."""
    with engine.train_mode():
        engine.optimizer_zero_grad()
        engine.forward_backward_batch(batch(rows), loss)
        return engine.optimizer_step()


def log_probs(engine: Any, rows: list[list[int]]) -> list[torch.Tensor]:
    """Log-probs of the rows' tokens, from the second on."""
    with engine.eval_mode():
        output = engine.forward_backward_batch(batch(rows), None, forward_only=True)
    values = output["model_output"]["log_probs"]
    return [row[:-1] for row in values.unbind()]


def adapters(engine: Any) -> dict[str, torch.Tensor]:
    """Copies of the adapters."""
    return {n: p.detach().clone() for n, p in engine.module.named_parameters() if p.requires_grad}


def main(folder: str, out: str) -> None:
    """Two steps of this rank's share of the rows; writes the adapters, and those before."""
    import verl  # noqa: F401
    from verl.utils.distributed import initialize_global_process_group_ray

    initialize_global_process_group_ray(timeout_second=60)
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    engine = make_engine(folder, seed=rank)  # other seeds: the first rank's adapters are taken
    before = adapters(engine)
    for _ in range(2):
        train_step(engine, ROWS[rank::ranks])
    torch.save({"before": before, "after": adapters(engine)}, Path(out) / f"{ranks}_{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
