"""Runs veRL's FSDP engine without Ray and vLLM, built from a composed recipe as veRL's worker builds it.

One process is the whole group of ranks, with NCCL on a GPU and gloo on a CPU. Rows are random token ids, and
the loss is the mean of -log p, whose gradients pass through the same layers as those of a policy's loss.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import verl  # noqa: F401  (loads the plugin)
from omegaconf import DictConfig
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.device import get_device_id
from verl.utils.distributed import initialize_global_process_group_ray
from verl.utils.import_utils import import_external_libs
from verl.workers.engine import EngineRegistry

from benchmarks.gpu.plan import Plan
from rag_r1.config.recipes import Recipe
from rag_r1.system.child_processes import free_port
from rag_r1.training.composition import compose_recipe

#: The parts of a training step.
PARTS = ("forward and backward", "optimizer step")
#: Returns a context manager, such as a meter, in which a part of a step runs; the argument is one of PARTS.
PartContext = Callable[[str], AbstractContextManager]


def compose(plan: Plan, recipe: str, model: Path, *overrides: str) -> DictConfig:
    """Compose a recipe for this machine with a model. Raises RunError if that fails."""
    # A recipe requires these values, which the engine alone does not use.
    unused = ["data.train_files=none", "data.val_files=none", "rag_r1.retriever.url=http://127.0.0.1:1"]
    used = [plan.platform, f"actor_rollout_ref.model.path='{model}'", "trainer.n_gpus_per_node=1"]
    return compose_recipe(Recipe.find(recipe), [*used, *unused, *overrides])


class LoneEngine:
    """The actor's engine of a composed recipe; the attribute `engine` is veRL's object."""

    def __init__(self, config: DictConfig):
        _join_alone()
        self._layered = bool(config.actor_rollout_ref.rollout.get("layered_summon"))
        self._model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
        import_external_libs(config.actor_rollout_ref.model.get("external_lib"))
        actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        self.engine = EngineRegistry.new(
            model_type="language_model",
            backend=actor.engine.strategy,
            model_config=self._model,
            engine_config=actor.engine,
            optimizer_config=actor.optim,
            checkpoint_config=actor.checkpoint,
        )
        self.engine.initialize()

    def step(
        self, rows: Sequence[torch.Tensor], tokens: int, context_of: PartContext = lambda part: nullcontext()
    ) -> float:
        """Make a training step in micro batches of at most `tokens`, and return the norm of the gradients.

        Each of its two parts runs in the block of its `context_of`.
        """
        with self.engine.train_mode():
            self.engine.optimizer_zero_grad()
            with context_of(PARTS[0]):
                self.engine.forward_backward_batch(self._batch(rows, tokens), _loss)
            with context_of(PARTS[1]):
                return self.engine.optimizer_step()

    def log_probs(self, rows: Sequence[torch.Tensor], tokens: int) -> list[torch.Tensor]:
        """Return the log-probs of each row's tokens from the second on, in 32 bits."""
        with self.engine.eval_mode():
            data = self._batch(rows, tokens)
            output = self.engine.forward_backward_batch(data, None, forward_only=True)
        return [row[:-1].float().cpu() for row in output["model_output"]["log_probs"].unbind()]

    def trained(self) -> dict[str, torch.Tensor]:
        """Return copies of the trained weights on the CPU, by name."""
        named = ((n, p.detach()) for n, p in self.engine.module.named_parameters() if p.requires_grad)
        local = ((n, p.to_local() if hasattr(p, "to_local") else p) for n, p in named)
        return {name: value.cpu().clone() for name, value in local}

    def sent(self, *, base: bool) -> tuple[dict[str, torch.Tensor], dict[str, Any] | None]:
        """Return the tensors that vLLM would receive, by name, and PEFT's configuration.

        With `base` these are the weights of the base model, and otherwise only the adapters.
        """
        sent, config = self.engine.get_per_tensor_param(base_sync_done=not base)
        return dict(sent), config

    def gather(self, *, trains_adapters: bool) -> None:
        """Make each tensor for vLLM in turn, and discard it."""
        sent, _ = self.engine.get_per_tensor_param(
            layered_summon=self._layered, base_sync_done=trains_adapters
        )
        for _ in sent:
            pass

    def _batch(self, rows: Sequence[torch.Tensor], tokens: int) -> Any:
        """Return rows of token ids as a batch of veRL, whose micro batches have at most `tokens`."""

        def nested(lists: Sequence[torch.Tensor]) -> torch.Tensor:
            return torch.nested.as_nested_tensor(list(lists), layout=torch.jagged)

        masks = [torch.tensor([1] * (len(row) - 1) + [0]) for row in rows]
        data = TensorDict(
            {
                "input_ids": nested(rows),
                "position_ids": nested([torch.arange(len(row)) for row in rows]),
                "loss_mask": nested(masks),
            },
            batch_size=[len(rows)],
        )
        settings = {"use_dynamic_bsz": True, "max_token_len_per_gpu": tokens, "calculate_entropy": False}
        model = {key: getattr(self._model, key) for key in ("use_remove_padding", "use_fused_kernels")}
        tu.assign_non_tensor(data, temperature=1.0, micro_batch_size_per_gpu=None, **settings, **model)
        return data.to(get_device_id())


def random_rows(count: int, length: int, vocabulary: int) -> list[torch.Tensor]:
    """Return rows of random token ids, which are the same for every call."""
    generator = torch.Generator().manual_seed(0)
    return list(torch.randint(0, vocabulary, (count, length), generator=generator))


def _loss(model_output: dict[str, Any], data: Any, dp_group: Any = None) -> tuple[torch.Tensor, dict]:
    """Return the mean of -log p, in the form of veRL's loss functions."""
    tokens = tu.get_non_tensor_data(data, "batch_num_tokens", default=None)
    return -(model_output["log_probs"].values() * data["loss_mask"].values()).sum() / tokens, {}


def _join_alone() -> None:
    """Make a process group of this process only, if there is none."""
    if torch.distributed.is_initialized():
        return
    variables = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    os.environ.update(variables, MASTER_PORT=str(free_port()))
    initialize_global_process_group_ray(timeout_second=60)
