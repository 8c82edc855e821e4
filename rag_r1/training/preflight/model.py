"""Checks the model: weights, tokenizer, tags and chat template."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rag_r1.agent import TokenizerCodec
from rag_r1.config.agent_setup import for_tokenizer, tool_schemas
from rag_r1.config.schema import RagR1Config
from rag_r1.inference.tokenizer import why_not_loaded
from rag_r1.io.bounded_json import read_json_file
from rag_r1.io.errors import DataError
from rag_r1.options.problems import Problem, error, is_unset, plain, problem_of_fault
from rag_r1.protocols import ChatTemplateError, Protocol
from rag_r1.sandbox.chat_template import refuse_endless_files, refuse_endless_template


def check_model(
    config: DictConfig, section: str = "actor_rollout_ref.model"
) -> tuple[Any | None, list[Problem]]:
    """The model of the block `section` exists and its tokenizer loads. Returns the tokenizer, or None with
    the problem."""
    key, node = f"{section}.path", OmegaConf.select(config, section)
    if is_unset(config, key):
        return None, []
    path = Path(node.path).expanduser()
    looks_local = node.path.startswith(("/", ".", "~")) or path.exists()
    if looks_local and not (path / "config.json").is_file():
        text = f"{node.path} is not a model folder (no config.json in it)"
        return None, [error(key, text, "correct the path")]
    from verl.utils.tokenizer import hf_tokenizer

    source = node.get("tokenizer_path") or node.path
    try:
        folder = Path(source).expanduser()
        refuse_endless_files(folder)
        trusted = bool(node.get("trust_remote_code"))
        tokenizer = hf_tokenizer(str(folder) if looks_local else source, trust_remote_code=trusted)
    except Exception as fault:  # the Hub, the cache and the tokenizer's own code may raise anything
        text = f"cannot load the tokenizer of {node.path}: {why_not_loaded(source, fault)}"
        remedy = "give a folder that has a model and its tokenizer, or a name on the Hub"
        return None, [error(key, text, remedy)]
    if node.get("custom_chat_template"):
        tokenizer.chat_template = node.custom_chat_template
    if not tokenizer.chat_template:
        text = f"the tokenizer of {node.path} has no chat template"
        return None, [error(key, text, f"set {section}.custom_chat_template")]
    try:
        refuse_endless_template(tokenizer)
    except DataError as fault:
        return None, [error(key, str(fault), f"set {section}.custom_chat_template, or use another model")]
    return tokenizer, []


def model_settings(folder: Path) -> dict[str, Any]:
    """The settings of a local model, those of its text part included; empty if they cannot be read."""
    try:
        settings = read_json_file(folder / "config.json")
        return {**settings.get("text_config", {}), **settings}
    except (OSError, ValueError, RecursionError, AttributeError, TypeError):
        return {}


#: Keys by which transformers and PEFT load weights in 4 or 8 bits.
_QUANTISED = ("load_in_4bit", "load_in_8bit", "quantization_config", "bnb_4bit_quant_type", "qlora")


def check_quantisation(config: DictConfig, section: str = "actor_rollout_ref.model") -> Iterator[Problem]:
    """No key sets nf4 or 8-bit weights: veRL's engines would train a policy that vLLM cannot load."""
    for key in (f"{node}.{name}" for node in (section, f"{section}.override_config") for name in _QUANTISED):
        if OmegaConf.select(config, key):
            text = "veRL 0.9.1 trains no quantised weights (nf4): vLLM is sent weights of 16 bits"
            yield error(key, text, f"remove it, and set {section}.lora_rank=8: adapters in 16 bits")


def check_tags(
    protocol: Protocol, tokenizer: Any, key: str = "actor_rollout_ref.model.path"
) -> Iterator[Problem]:
    """The tokenizer keeps every tag visible: one that is a special token would be missing from turns."""
    codec = TokenizerCodec(tokenizer)
    for block in protocol.blocks:
        for tag in (block.open, block.close):
            if tag not in codec.decode(codec.encode(f"a {tag} b")):
                text = f"the tokenizer loses {tag!r} (the protocol's {block.name} tag) in decoding"
                remedy = "register the tag as an ordinary added token, or use a protocol with other tags"
                yield error(key, text, remedy)


def check_turns(
    config: DictConfig, settings: RagR1Config, tokenizer: Any, section: str = "actor_rollout_ref.model"
) -> Iterator[Problem]:
    """With `turns: chat`: the chat template shows tools and writes earlier turns unchanged, and the engine
    ends a turn where the template does."""
    if settings.protocol.turns == "text":
        return
    key, arguments = f"{section}.path", plain(OmegaConf.select(config, "data.apply_chat_template_kwargs"))
    try:
        protocol = for_tokenizer(settings.protocol, tokenizer, tool_schemas(settings), arguments)
    except ChatTemplateError as fault:
        yield error(key, str(fault), fault.remedy)
        return
    except Exception as fault:  # a tool's factory may raise anything
        yield problem_of_fault(fault)
        return
    ends = _ends_of_sequence(Path(str(OmegaConf.select(config, key))).expanduser(), tokenizer)
    if tokenizer.convert_tokens_to_ids(protocol.end_token) not in ends:
        text = f"the chat template ends a turn with {protocol.end_token!r}, at which the engine does not stop"
        remedy = "add its id to eos_token_id in the model's generation_config.json, or use the instruct model"
        yield error(key, text, remedy)


def _ends_of_sequence(model: Path, tokenizer: Any) -> set[int]:
    """Ids at which the engine ends a generation: the tokenizer's, and those that the model's own settings
    name."""
    try:
        named = read_json_file(model / "generation_config.json")["eos_token_id"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        named = []
    return {tokenizer.eos_token_id, *(named if isinstance(named, list) else [named])}
