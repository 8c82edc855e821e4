"""Makes models of real shapes without a download, with random weights and the tokenizer of the demo.

Memory and speed depend only on the shape. The tokenizer has fewer tokens than such a model; ids beyond it
decode to nothing, so a policy with random weights writes turns of full length. A miniature has a single size,
`tiny`, whose layers are wide enough for nf4.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.gpu.made import made_once
from benchmarks.gpu.plan import Plan
from rag_r1.demo.policy import policy_path
from rag_r1.runs.errors import RunError
from rag_r1.training.preflight.memory.shape import SHAPES, ModelShape

PROTOCOL = "rag_r1_mq"
#: The shape of a miniature, in the order of the table SHAPES.
_TINY = ModelShape("tiny", 2, 64, 128, 4, 2, SHAPES["demo"].vocabulary, tied=True, head_dim=16)
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def shape_for(size: str) -> ModelShape:
    """Return the shape of a size, such as `7B`. Raises KeyError for an unknown size."""
    return _TINY if size == _TINY.name else SHAPES[size]


def check_models(plan: Plan, sizes: set[str]) -> None:
    """Raise RunError if a model is missing and random weights are not allowed."""
    missing = sorted(size for size in sizes if not _exists(plan, size))
    if missing and not plan.random_weights:
        raise RunError(
            f"{plan.models} has no model {', '.join(missing)}: put a model's folder of that name there, or "
            "give --random-weights"
        )


def model_folder(plan: Plan, size: str) -> Path:
    """Return the folder of a model, which is made unless it exists.

    Raises RunError if the model is missing and may not be made, and OSError if it cannot be written.
    """
    check_models(plan, {size})
    folder = plan.models / size
    if not _exists(plan, size):
        with made_once(folder) as part:
            _save(shape_for(size), part)
    return folder


def _exists(plan: Plan, size: str) -> bool:
    return (plan.models / size / "config.json").is_file()


def _save(shape: ModelShape, folder: Path) -> None:
    """Write a model of this shape with random weights, and the tokenizer of the demo."""
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    demo = policy_path(PROTOCOL)
    tokenizer = AutoTokenizer.from_pretrained(demo)
    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=32_768,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available()
    with torch.device("cuda" if on_gpu else "cpu"):  # 7 billion parameters would take minutes on a CPU
        model = Qwen2ForCausalLM(config).to(torch.bfloat16 if on_gpu else torch.float32)
    model.save_pretrained(folder)
    for name in filter(lambda name: (demo / name).is_file(), _TOKENIZER_FILES):
        shutil.copyfile(demo / name, folder / name)
