"""What FSDP1, which does not shard there, does on one GPU: recipes for one card and the preflight rely on it.

Seen first on an H100, and repeated here on a CPU, with a group of one process and veRL's own functions.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, StateDictType
from transformers import Qwen2Config, Qwen2ForCausalLM
from verl.utils import fsdp_utils

pytestmark = pytest.mark.slow  # a process group, and wrapped models

LAYERS, LINEAR_LAYERS = 2, 7
TOKENS = torch.arange(8)[None]


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory: pytest.TempPathFactory):
    store = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def wrapped(*, adapters: bool, own_params: bool) -> FSDP:
    """Return a small model, wrapped as veRL's engine wraps it."""
    torch.manual_seed(0)
    shape = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": LAYERS}
    model = Qwen2ForCausalLM(Qwen2Config(**shape, num_attention_heads=4, num_key_value_heads=2))
    if adapters:
        lora = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear", init_lora_weights=False)
        model = get_peft_model(model, lora).bfloat16()
    fsdp = FSDP(
        model,
        auto_wrap_policy=fsdp_utils.get_fsdp_wrap_policy(module=model, config=None, is_lora=adapters),
        use_orig_params=own_params,
        device_id=torch.device("cpu"),
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    )
    FSDP.set_state_dict_type(fsdp, StateDictType.FULL_STATE_DICT)
    return fsdp


def move(model: FSDP) -> int:
    """Move the weights as veRL offloads them; returns how many modules still use the former memory."""
    fsdp_utils._lazy_init(model, model)
    handles = model._all_handles
    former = [handle.flat_param.data for handle in handles]  # kept, so that no new memory has its address
    for handle in handles:
        handle.flat_param_to(handle.flat_param.dtype, copy=True)
        handle.flat_param._local_shard = handle.flat_param.data
    addresses = {tensor.untyped_storage().data_ptr() for tensor in former}
    attributes = (value for module in model.modules() for value in vars(module).values())
    views = (value for value in attributes if isinstance(value, torch.Tensor))
    return sum(view.untyped_storage().data_ptr() in addresses for view in views)


def test_verl_finds_all_adapters_for_vllm():
    model = wrapped(adapters=True, own_params=True)
    collected = fsdp_utils.collect_lora_params(model, layered_summon=False, base_sync_done=True)
    assert len(collected) == 2 * LAYERS * LINEAR_LAYERS
    assert all(name.endswith(("lora_A.weight", "lora_B.weight")) for name in collected)
    assert all(tensor.any() for tensor in collected.values())


def test_gathering_by_layers_ends_with_an_error():
    """If this fails, veRL has mended it: remove the preflight's error, and the key from the recipes."""
    model = wrapped(adapters=True, own_params=True)
    with pytest.raises(NotImplementedError, match="NO_SHARD"):
        fsdp_utils.collect_lora_params(model, layered_summon=True, base_sync_done=True)


@pytest.mark.parametrize("adapters", [False, True])
def test_offloaded_weights_are_released_only_if_the_parameters_are_the_models_own(adapters: bool):
    held = {}
    for own_params in (False, True):
        model = wrapped(adapters=adapters, own_params=own_params)
        model(input_ids=TOKENS).logits.float().sum().backward()
        move(model)
        if adapters:
            fsdp_utils.collect_lora_params(model, layered_summon=False, base_sync_done=True)
        else:
            model.state_dict()
        held[own_params] = move(model)
    assert held[True] == 0 < held[False]


@pytest.mark.parametrize("adapters", [False, True])
def test_own_parameters_are_trained_to_the_same_weights(adapters: bool):
    trained = []
    for own_params in (False, True):
        model = wrapped(adapters=adapters, own_params=own_params)
        optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
        for _ in range(3):
            model(input_ids=TOKENS, labels=TOKENS).loss.backward()
            model.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
            move(model)
        with FSDP.summon_full_params(model, writeback=False):
            trained.append({name: value.clone() for name, value in model.state_dict().items()})
    assert trained[0].keys() == trained[1].keys()
    for name, weights in trained[0].items():
        torch.testing.assert_close(trained[1][name], weights, msg=name)
