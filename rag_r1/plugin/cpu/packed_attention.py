"""Attention over rows that are packed one behind the other, without FlashAttention.

With `use_remove_padding` veRL joins the rows of a micro-batch into one row without padding, in which the
positions start again at 0 with each of them (verl/workers/engine/fsdp/transformer_impl.py,
`prepare_model_inputs`). FlashAttention keeps the rows apart; it has no build for a CPU. PyTorch's attention
(`sdpa`) would need a mask of all pairs of tokens. Without `use_remove_padding` rows are padded to the longest
of their micro-batch: a search agent's rows, some of 50 tokens and some of 800, then take up to four times as
long.

`packed_sdpa` calls PyTorch's causal attention once for each row. A model uses it with
``override_config.attn_implementation: packed_sdpa``, the name that importing this module registers with
transformers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from transformers import AttentionInterface

#: The name of this attention in a model's configuration.
PACKED_SDPA = "packed_sdpa"


def packed_sdpa(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    position_ids: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Return the output of causal attention, in which each token sees those of its own row only.

    `query` has the shape (1, heads, tokens, dimensions of a head), `key` and `value` may have fewer heads, of
    which `module.num_key_value_groups` says how many query heads share one; `position_ids` has (1, tokens)
    positions that are 0 at the start of each row. The output has the shape (1, tokens, heads, dimensions).
    Raises ValueError for padded rows: transformers makes no mask for this attention.
    """
    if position_ids is None or query.shape[0] != 1 or attention_mask is not None:
        raise ValueError(
            f"attn_implementation {PACKED_SDPA!r} takes rows without padding: set use_remove_padding=true, "
            "or attn_implementation=sdpa"
        )
    groups = getattr(module, "num_key_value_groups", 1)
    if groups > 1:
        key = key.repeat_interleave(groups, dim=1)
        value = value.repeat_interleave(groups, dim=1)
    starts = (position_ids[0] == 0).nonzero().flatten().tolist()
    lengths = [end - start for start, end in zip(starts, [*starts[1:], query.shape[2]], strict=True)]
    attend = partial(
        torch.nn.functional.scaled_dot_product_attention, dropout_p=dropout, scale=scaling, is_causal=True
    )
    rows = zip(query.split(lengths, 2), key.split(lengths, 2), value.split(lengths, 2), strict=True)
    outputs = [attend(*row) for row in rows]
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous(), None


AttentionInterface.register(PACKED_SDPA, packed_sdpa)
