"""Preflight of the model: it is there and not quantised; its tokenizer loads and keeps every tag visible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rag_r1.agent import TokenizerCodec
from rag_r1.preflight.problems import Problem, error, first_line, not_given
from rag_r1.protocols import Protocol


def check_model(
    config: DictConfig, where: str = "actor_rollout_ref.model"
) -> tuple[Any | None, list[Problem]]:
    """The model of the block `where` exists and its tokenizer loads. Returns the tokenizer, or None with the
    problem."""
    key, node = f"{where}.path", OmegaConf.select(config, where)
    if not_given(config, key):
        return None, []
    path = Path(node.path).expanduser()
    looks_local = node.path.startswith(("/", ".", "~")) or path.exists()
    if looks_local and not (path / "config.json").is_file():
        return None, [
            error(key, f"{node.path} is not a model folder (no config.json in it)", "correct the path")
        ]
    from verl.utils.tokenizer import hf_tokenizer

    try:
        source = node.get("tokenizer_path") or node.path
        tokenizer = hf_tokenizer(str(Path(source).expanduser()) if looks_local else source,
                                 trust_remote_code=node.get("trust_remote_code", False))  # fmt: skip
    except Exception as fault:  # the Hub, the cache and the tokenizer's own code may raise anything
        what = f"cannot load the tokenizer of {node.path} ({type(fault).__name__}: {first_line(fault)})"
        return None, [
            error(key, what, "give a folder that has a model and its tokenizer, or a name on the Hub")
        ]
    if node.get("custom_chat_template"):
        tokenizer.chat_template = node.custom_chat_template
    if not tokenizer.chat_template:
        what = f"the tokenizer of {node.path} has no chat template"
        return None, [error(key, what, f"set {where}.custom_chat_template")]
    return tokenizer, []


#: Keys by which transformers and PEFT load weights in 4 or 8 bits.
_QUANTISED = ("load_in_4bit", "load_in_8bit", "quantization_config", "bnb_4bit_quant_type", "qlora")


def check_quantisation(config: DictConfig, where: str = "actor_rollout_ref.model") -> list[Problem]:
    """No key asks for nf4 or 8-bit weights: veRL's engines would train a policy that vLLM cannot be given."""
    problems = []
    for node in (where, f"{where}.override_config"):
        for key in _QUANTISED:
            if OmegaConf.select(config, f"{node}.{key}"):
                what = "veRL 0.9.1 trains no quantised weights (nf4): vLLM is sent weights of 16 bits"
                remedy = f"remove it, and set {where}.lora_rank=8 and {where}.lora.merge=true: adapters"
                problems.append(error(f"{node}.{key}", what, remedy))
    return problems


def check_tags(
    protocol: Protocol, tokenizer: Any, key: str = "actor_rollout_ref.model.path"
) -> list[Problem]:
    """The tokenizer keeps every tag visible: one that is a special token would be missing from turns."""
    codec, problems = TokenizerCodec(tokenizer), []
    for block in protocol.blocks:
        for text in (block.open, block.close):
            if text not in codec.decode(codec.encode(f"a {text} b")):
                what = f"the tokenizer loses {text!r} (the protocol's {block.name} tag) in decoding"
                remedy = "register the tag as an ordinary added token, or use a protocol with other tags"
                problems.append(error(key, what, remedy))
    return problems
