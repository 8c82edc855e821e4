"""A small tokenizer with the control tokens of Qwen3 and Llama 3, and chat templates for it: two of our own,
and those files of the package trl that hold the templates of published models. `scripts/setup_env.sh --dev`
puts trl's files into a folder of their own, since veRL fails where it finds trl
(rag_r1/training/doctor/packages.py). Where they are missing, these templates are skipped, with that as the
reason."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from rag_r1.demo.tokenizer import make_tokenizer

TAGS = [f"<{slash}{name}>" for name in ("think", "tool_call", "tool_response") for slash in ("", "/")]
SPECIAL = ["<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|begin_of_text|>", "<|endoftext|>"]

_TOOLS = "{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}"
_MESSAGE = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
_GO_ON = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
#: Results of tools as messages of their own, unchanged.
PLAIN = _TOOLS + "{% for m in messages %}" + _MESSAGE + "{% endfor %}" + _GO_ON
#: Results as JSON strings; the header of a turn opens its thought.
QUOTING = PLAIN.replace("m.content", "m.content | tojson if m.role == 'tool' else m.content")
QUOTING = QUOTING.replace("assistant\n", "assistant\n<think>\n")
OWN = {"plain": PLAIN, "quoting": QUOTING}
PUBLISHED = tuple("qwen3 qwen3_training qwen3_instruct_2507 qwen2_5 qwen3_5_think llama3_1 llama3_2".split())
_FOLDER = Path(sys.prefix) / "apart" / "trl" / "chat_templates"
_FILES = _FOLDER if _FOLDER.is_dir() else None
_LEFT_OUT = pytest.mark.skip(
    reason="the templates of published models are not here: bash scripts/setup_env.sh --dev"
)

USABLE = [*OWN, *(pytest.param(name, marks=[] if _FILES else _LEFT_OUT) for name in PUBLISHED)]


@cache
def tokenizer_with(name: str) -> Any:
    """The tokenizer with one of the templates."""
    whole = ["<answer>", "</answer>", *TAGS]
    tokenizer = make_tokenizer(["Which river flows through Ulm? The Danube, and not the Rhine."], whole)
    tokenizer.add_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.bos_token = "<|begin_of_text|>"
    if name in PUBLISHED:
        assert _FILES is not None
        tokenizer.chat_template = (_FILES / f"{name}.jinja").read_text(encoding="utf-8")
    else:
        tokenizer.chat_template = OWN.get(name, name)
    return tokenizer
