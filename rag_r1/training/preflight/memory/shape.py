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
    hidden_size: int
    #: The width of the feed-forward part of a layer.
    intermediate_size: int
    #: The number of attention heads, and of those of keys and values.
    heads: int
    kv_heads: int
    #: The number of token ids.
    vocabulary: int
    #: Whether input and output share the embeddings.
    tied: bool
    #: The width of an attention head.
    head_dim: int = 128
    #: Whether the projections to queries, keys and values have biases.
    biases: bool = True

    @property
    def projection_widths(self) -> tuple[int, int]:
        """The width of the projection to queries, and that of those to keys and to values."""
        return self.heads * self.head_dim, self.kv_heads * self.head_dim

    @property
    def layer_parameters(self) -> int:
        """The number of parameters of a layer."""
        q, kv = self.projection_widths
        biases = q + 2 * kv if self.biases else 0
        return self.linear_parameters // self.layers + biases + 2 * self.hidden_size  # two norms

    @property
    def linear_parameters(self) -> int:
        """The number of weights in the linear projections of all layers, which nf4 quantises and adapters
        adapt."""
        q, kv = self.projection_widths
        return self.layers * self.hidden_size * (2 * q + 2 * kv + 3 * self.intermediate_size)

    @property
    def embedding_parameters(self) -> int:
        """The number of parameters of the input and output embeddings."""
        return self.vocabulary * self.hidden_size * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """The number of parameters of the whole model: embeddings, layers and the last norm."""
        return self.embedding_parameters + self.layers * self.layer_parameters + self.hidden_size

    @property
    def cache_bytes_per_token(self) -> int:
        """The bytes of a token in vLLM's cache, in 16 bits."""
        return 2 * self.layers * self.projection_widths[1] * 2

    def adapter_parameters(self, rank: int, targets: object) -> int:
        """Return the number of parameters of LoRA adapters of this rank. `targets` has the names of the
        adapted projections, or is a text such as `all-linear` for all of them."""
        q, kv = self.projection_widths
        h, inner = self.hidden_size, self.intermediate_size
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
        ModelShape("0.5B", 24, 896, 4864, 14, 2, 151_936, tied=True, head_dim=64),
        ModelShape("1.5B", 28, 1536, 8960, 12, 2, 151_936, tied=True),
        ModelShape("3B", 36, 2048, 11_008, 16, 2, 151_936, tied=True),
        ModelShape("7B", 28, 3584, 18_944, 28, 4, 152_064, tied=False),
        ModelShape("14B", 48, 5120, 13_824, 40, 8, 152_064, tied=False),
        ModelShape("32B", 64, 5120, 27_648, 40, 8, 152_064, tied=False),
        ModelShape("Llama 8B", 32, 4096, 14_336, 32, 8, 128_256, tied=False, biases=False),
        ModelShape("135M", 30, 576, 1536, 9, 3, 49_152, tied=True, head_dim=64, biases=False),
        ModelShape("demo", 4, 128, 384, 4, 4, 1017, tied=True, head_dim=32),
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
            hidden_size=hidden,
            intermediate_size=int(keys["intermediate_size"]),
            heads=heads,
            kv_heads=int(keys.get("num_key_value_heads") or heads),
            vocabulary=int(keys["vocab_size"]),
            tied=bool(keys.get("tie_word_embeddings")),
            head_dim=int(keys.get("head_dim") or hidden // heads),
            biases=keys.get("model_type") == "qwen2" or bool(keys.get("attention_bias")),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None
    sizes = [value for value in vars(shape).values() if type(value) is int]
    return shape if all(1 <= size <= _MAX_SIZE for size in sizes) else None
