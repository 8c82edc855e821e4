"""Checks the weight transfer to the engine: the largest tensor must fit into a bucket.

veRL 0.9.1 sends weights to vLLM in buckets of a fixed size, in the dtype in which they are trained
(workers/rollout/vllm_rollout/bucketed_weight_transfer.py, `async_send_weights`). Between CUDA devices, a
tensor that is larger than a bucket is sent alone. On a CPU, where buckets are shared memory, an assertion
ends the run after everything has been started. The transfer `mooncake` makes the same assertion, while those
of NCCL and NIXL split large tensors (checkpoint_engine/base.py, `split_weight_chunks`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from rag_r1.inference.model_folders import tensors_of
from rag_r1.inference.model_folders.model_config import model_config
from rag_r1.io.errors import DataError
from rag_r1.options.problems import Problem, error, is_unset, warning
from rag_r1.training.config_facts import adapter_rank, is_nf4
from rag_r1.training.preflight.memory.formulas import dtype_bytes

_KEY = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"


def check_bucket(config: DictConfig) -> Iterator[Problem]:
    """Check that the largest tensor of a local model fits into a bucket, in the dtype of the training."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    model, engine = config.actor_rollout_ref.model, rollout.checkpoint_engine
    if is_unset(config, "actor_rollout_ref.model.path") or actor.strategy not in ("fsdp", "fsdp2"):
        return
    nf4 = is_nf4(config)
    is_unmerged = adapter_rank(config) and not (model.get("lora") or {}).get("merge")
    if is_unmerged and "dummy" not in str(rollout.load_format):
        return  # only adapters are sent
    largest = largest_tensor(Path(str(model.path)).expanduser())
    if largest is None:
        return
    name, values = largest
    dtype = OmegaConf.select(actor, f"fsdp_config.{'mixed_precision.param_dtype' if nf4 else 'model_dtype'}")
    dtype = dtype or ("bf16" if nf4 else "fp32")  # veRL's defaults
    needed_mb = -(-values * dtype_bytes(dtype) // 2**20)  # rounded up; a float could overflow
    bucket_mb = int(engine.update_weights_bucket_megabytes)
    if bucket_mb >= needed_mb:
        return
    text = f"a bucket of {bucket_mb} MB is smaller than {name}, which has {needed_mb} MB in {dtype}"
    if config.trainer.device == "cpu" or engine.backend == "mooncake":
        yield error(_KEY, f"{text}: veRL ends with an assertion", f"set it to at least {needed_mb}")
    else:
        yield warning(_KEY, f"{text}: veRL sends it alone", f"set it to {needed_mb}, if there is room for it")


def largest_tensor(folder: Path) -> tuple[str, int] | None:
    """Return the name and the number of values of a model's largest tensor, from the headers of its
    safetensors files or from the size of the embedding in its config.json. Returns None if the folder has
    neither."""
    tensors = [tensor for file in folder.glob("*.safetensors") for tensor in _tensors_of(file)]
    if tensors:
        return max(tensors, key=lambda tensor: tensor[1])
    try:
        settings = model_config(folder)
        return "the embedding", int(settings["vocab_size"]) * int(settings["hidden_size"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


def _tensors_of(file: Path) -> Iterator[tuple[str, int]]:
    """Yield the name and the number of values of each tensor in a safetensors file. Nothing is yielded for
    an incomplete file, which `check_model` reports."""
    with suppress(DataError, OSError, KeyError, TypeError):
        for name, entry in tensors_of(file).items():
            yield name, math.prod(entry["shape"])
