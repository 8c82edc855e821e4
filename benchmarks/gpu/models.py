"""Models of real shapes without a download: random weights, with the tokenizer of the demo.

Memory and speed depend on the shape alone. The tokenizer has fewer tokens than such a model; ids beyond it
decode to nothing, so a policy of random weights writes turns of full length. A miniature has one size,
`tiny`, with layers wide enough for nf4.
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
_TINY = ModelShape("tiny", 2, 64, 128, 4, 2, SHAPES["demo"].vocabulary, tied=True, head=16)
_OF_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


def shape_for(size: str) -> ModelShape:
    """The shape of a size."""
    return _TINY if size == _TINY.name else SHAPES[size]


def check_models(plan: Plan, sizes: set[str]) -> None:
    """Raises RunError if a model is missing that may not be made."""
    missing = sorted(size for size in sizes if not _is_there(plan, size))
    if missing and not plan.random_weights:
        raise RunError(
            f"{plan.models} has no model {' and none '.join(missing)}: put a model's folder of that name "
            "there, or give --random-weights"
        )


def model_folder(plan: Plan, size: str) -> Path:
    """The folder of a size, which is made if it is not there. Raises RunError, OSError."""
    check_models(plan, {size})
    folder = plan.models / size
    if not _is_there(plan, size):
        with made_once(folder) as part:
            _save(shape_for(size), part)
    return folder


def _is_there(plan: Plan, size: str) -> bool:
    return (plan.models / size / "config.json").is_file()


def _save(shape: ModelShape, folder: Path) -> None:
    """Write a model of that shape with random weights, and the tokenizer of the demo."""
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    demo = policy_path(PROTOCOL)
    tokenizer = AutoTokenizer.from_pretrained(demo)
    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
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
    with torch.device("cuda" if on_gpu else "cpu"):  # minutes on a CPU for 7 billion parameters
        model = Qwen2ForCausalLM(config).to(torch.bfloat16 if on_gpu else torch.float32)
    model.save_pretrained(folder)
    for name in filter(lambda name: (demo / name).is_file(), _OF_TOKENIZER):
        shutil.copyfile(demo / name, folder / name)
