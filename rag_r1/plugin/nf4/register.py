"""Makes veRL train adapters over weights in nf4, if its configuration names this module.

    actor_rollout_ref.model.external_lib=rag_r1.plugin.nf4.register

veRL imports the module before it makes an engine. The import registers engines for language models on CPUs
and NVIDIA GPUs, under veRL's key for engines of a vendor, which take precedence over veRL's own. A critic
still uses veRL's engine. The preflight (rag_r1/training/preflight/nf4.py) refuses settings with which veRL
would silently train or generate with other weights.
"""

from __future__ import annotations

from verl.utils.device import get_device_name
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from rag_r1.plugin.nf4.engine import NF4Mixin

_FSDP = ["fsdp", "fsdp2"]


@EngineRegistry.register(model_type="language_model", backend=_FSDP, device="cuda", vendor="nvidia")
class CUDAEngineOverNF4(NF4Mixin, FSDPEngineWithLMHead):
    """The engine for NVIDIA GPUs."""


if get_device_name() == "cpu":
    from rag_r1.plugin.cpu.engines import CPUEngineWithLMHead

    @EngineRegistry.register(model_type="language_model", backend=_FSDP, device="cpu", vendor="cpu")
    class CPUEngineOverNF4(NF4Mixin, CPUEngineWithLMHead):
        """The engine for CPUs."""
