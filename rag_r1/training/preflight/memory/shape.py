"""The shape of a decoder: the sizes from which its memory is calculated.

`SHAPES` has the shapes of public models, and `shape_of` reads that of a model's config.json. Mixtures of
experts are not supported, because the part of them that a GPU holds at a time depends on the router.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Keys of a config.json that only a model with experts has.
EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts")
#: The largest size that a config.json can have: far above that of any model, and the formulas cannot
#: overflow.
_MAX_SIZE = 10**9


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder of the Qwen2 or Llama family."""

    name: str
    layers: int
    #: The width of a layer.
    hidden: int
    #: The width of the feed-forward part of a layer.
    intermediate: int
    #: The number of attention heads, and of those of keys and values.
    heads: int
    kv_heads: int
    #: The number of token ids.
    vocabulary: int
    #: Whether input and output share the embeddings.
    tied: bool
    #: The width of an attention head.
    head: int = 128
    #: Whether the projections of queries, keys and values have biases.
    biases: bool = True

    @property
    def attention(self) -> tuple[int, int]:
        """The width of the queries, and that of the keys, which is also that of the values."""
        return self.heads * self.head, self.kv_heads * self.head

    @property
    def layer(self) -> int:
        """The number of parameters of a layer."""
        q, kv = self.attention
        biases = q + 2 * kv if self.biases else 0
        return self.hidden * (2 * q + 2 * kv) + biases + 3 * self.hidden * self.intermediate + 2 * self.hidden

    @property
    def linear(self) -> int:
        """The number of weights in the linear projections of all layers, which nf4 quantises and adapters
        adapt."""
        q, kv = self.attention
        return self.layers * self.hidden * (2 * q + 2 * kv + 3 * self.intermediate)

    @property
    def embeddings(self) -> int:
        """The number of parameters of the input and output embeddings."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """The number of parameters of the whole model: embeddings, layers and the last norm."""
        return self.embeddings + self.layers * self.layer + self.hidden

    @property
    def cached_bytes(self) -> int:
        """The bytes of a token in vLLM's cache, in 16 bits."""
        return 2 * self.layers * self.attention[1] * 2

    def adapters(self, rank: int, targets: object) -> int:
        """Return the number of parameters of LoRA adapters of this rank. `targets` has the names of the
        adapted projections, or is a text such as `all-linear` for all of them."""
        q, kv = self.attention
        h, inner = self.hidden, self.intermediate
        sizes = {
            "q_proj": h + q, "k_proj": h + kv, "v_proj": h + kv, "o_proj": q + h,
            "gate_proj": h + inner, "up_proj": h + inner, "down_proj": inner + h,
        }  # fmt: skip
        names = sizes if isinstance(targets, str) else targets
        return self.layers * rank * sum(sizes.get(name, 0) for name in names)


#: The shapes of public models and of the demo's model, by their names in the table of recipes.
SHAPES = {
    shape.name: shape
    for shape in (
        ModelShape("0.5B", 24, 896, 4864, 14, 2, 151_936, tied=True, head=64),
        ModelShape("1.5B", 28, 1536, 8960, 12, 2, 151_936, tied=True),
        ModelShape("3B", 36, 2048, 11_008, 16, 2, 151_936, tied=True),
        ModelShape("7B", 28, 3584, 18_944, 28, 4, 152_064, tied=False),
        ModelShape("14B", 48, 5120, 13_824, 40, 8, 152_064, tied=False),
        ModelShape("32B", 64, 5120, 27_648, 40, 8, 152_064, tied=False),
        ModelShape("Llama 8B", 32, 4096, 14_336, 32, 8, 128_256, tied=False, biases=False),
        ModelShape("135M", 30, 576, 1536, 9, 3, 49_152, tied=True, head=64, biases=False),
        ModelShape("demo", 4, 128, 384, 4, 4, 1017, tied=True, head=32),
    )
}


def shape_of(keys: Mapping[str, Any], name: str = "model") -> ModelShape | None:
    """Return the shape that the keys of a config.json describe; None if a size is missing or is not a number
    from 1 to `_MAX_SIZE`, or if there are experts."""
    if any(keys.get(key) for key in EXPERT_KEYS):
        return None
    try:
        heads, hidden = int(keys["num_attention_heads"]), int(keys["hidden_size"])
        shape = ModelShape(
            name,
            layers=int(keys["num_hidden_layers"]),
            hidden=hidden,
            intermediate=int(keys["intermediate_size"]),
            heads=heads,
            kv_heads=int(keys.get("num_key_value_heads") or heads),
            vocabulary=int(keys["vocab_size"]),
            tied=bool(keys.get("tie_word_embeddings")),
            head=int(keys.get("head_dim") or hidden // heads),
            biases=keys.get("model_type") == "qwen2" or bool(keys.get("attention_bias")),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None
    sizes = (shape.layers, hidden, shape.intermediate, heads, shape.kv_heads, shape.vocabulary, shape.head)
    return shape if all(1 <= size <= _MAX_SIZE for size in sizes) else None
