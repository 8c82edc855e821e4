"""Checks the model: its folder, its config.json, its tokenizer and its chat template.

`check_model` loads the tokenizer, which the other checks use. `path` and `tokenizer_path` are each a folder,
in which `~` means the home folder, or a name on the Hub. Only the headers of the files with weights are read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rag_r1.agent import TokenizerCodec
from rag_r1.config.agent_setup import for_tokenizer, tool_schemas
from rag_r1.config.schema import RagR1Config
from rag_r1.inference.model_folders import check_weights, has_weights, is_hub_name, newest_checkpoint
from rag_r1.inference.model_folders.model_config import check_causal_model, model_config
from rag_r1.inference.tokenizer import check_vocabulary, why_not_loaded
from rag_r1.io.bounded_json import read_json_file
from rag_r1.io.errors import DataError
from rag_r1.io.hub import hub_answers
from rag_r1.options.problems import Problem, error, error_of, is_unset, plain, problem_of_fault, warning
from rag_r1.protocols import ChatTemplateError, Protocol
from rag_r1.runs.errors import RunError
from rag_r1.sandbox.chat_template import refuse_empty_tokenizer, refuse_endless_files, refuse_endless_template
from rag_r1.training.config_facts import NF4_ENGINE, needs_critic

_CRITIC = "critic.model"
#: The model's path in veRL's own configuration, which stands for none.
_PLACEHOLDER = "~/models/deepseek-llm-7b-chat"
#: Keys by which transformers and PEFT load weights in 4 or 8 bits.
_QUANTISED = ("load_in_4bit", "load_in_8bit", "quantization_config", "bnb_4bit_quant_type", "qlora")


def check_model(
    config: DictConfig, section: str = "actor_rollout_ref.model"
) -> tuple[Any | None, list[Problem]]:
    """Check that the model of the block `section` has a config.json, weights, and a tokenizer with a chat
    template. Returns the tokenizer, or None if it cannot be used, and the problems."""
    if is_unset(config, f"{section}.path"):
        return None, []
    node = OmegaConf.select(config, section)
    if (problem := _check_folder(f"{section}.path", node.path)) is not None:
        return None, [problem]
    engine = "critic" if section == _CRITIC else "actor_rollout_ref.actor"
    in_shards = OmegaConf.select(config, f"{engine}.megatron.use_dist_checkpointing")
    weight_problems = [] if in_shards else list(_check_weights(f"{section}.path", node.path))
    tokenizer, problem = _load_tokenizer(section, node)
    if problem is None:
        folder = Path(node.path).expanduser()
        weight_problems += _fault_of_check(f"{section}.path", check_vocabulary, tokenizer, folder)
        if section != _CRITIC:  # the critic gets token ids, and needs no template
            weight_problems += _fault_of_check(f"{section}.path", check_causal_model, folder)
            problem = _check_template(section, node, tokenizer)
    return (tokenizer, weight_problems) if problem is None else (None, [problem, *weight_problems])


def check_critic(config: DictConfig) -> list[Problem]:
    """Check that the model of a trained critic is given and, if it differs from the policy's, that it can be
    used."""
    if not needs_critic(config):
        return []
    if is_unset(config, f"{_CRITIC}.path") or config.critic.model.path == _PLACEHOLDER:
        if OmegaConf.is_interpolation(config.critic.model, "path"):
            return []  # it follows the policy's key, which has a problem of its own
        remedy = f"set {_CRITIC}.path=${{actor_rollout_ref.model.path}}, or a model with the same tokenizer"
        return [error(f"{_CRITIC}.path", "must be given", remedy)]
    differs = config.critic.model.path != OmegaConf.select(config, "actor_rollout_ref.model.path")
    return check_model(config, _CRITIC)[1] if differs else []


def _check_folder(key: str, name: str) -> Problem | None:
    """Return a Problem if a name looks like a path but is not the folder of a model."""
    path = Path(name).expanduser()
    looks_local = name.startswith(("/", ".", "~")) or path.exists()
    if looks_local and not (path / "config.json").is_file():
        model = _exported_model(path)
        remedy = "correct the path" if model is None else f"give the model that a training exported: {model}"
        return error(key, f"{name} is not a model folder (no config.json in it)", remedy)
    return None


def _exported_model(folder: Path) -> Path | None:
    """Return the model in a checkpoint, or in the newest one of a run's folder; None if there is none."""
    checkpoints = (folder, newest_checkpoint(folder), newest_checkpoint(folder / "checkpoints"))
    models = (path / name for path in checkpoints if path for name in ("actor/huggingface", "huggingface"))
    return next((model for model in models if has_weights(model)), None)


def _check_weights(key: str, name: str) -> Iterator[Problem]:
    """Check that a model's folder contains weights, that their files are complete, and that transformers
    knows the type of the model."""
    from transformers import CONFIG_MAPPING

    folder = Path(name).expanduser()
    if folder.is_dir() and not has_weights(folder):
        text = f"{name} holds no weights (no *.safetensors, no pytorch_model*.bin)"
        remedy = "copy them there, download the whole model (`hf download NAME --local-dir DIR`)"
        yield error(key, text, f"{remedy}, or give another folder")
    elif folder.is_dir():
        yield from _fault_of_check(key, check_weights, folder)
    values = model_config(folder)
    kind = values.get("model_type")
    if isinstance(kind, str) and kind not in CONFIG_MAPPING and "auto_map" not in values:
        text = f"the installed transformers does not know the model_type {kind!r} of {name}/config.json"
        yield error(key, text, "correct the file, or give another model")


def _fault_of_check(key: str, check: Callable[..., None], *args: Any) -> Iterator[Problem]:
    """Yield a Problem if a check raises RunError."""
    try:
        check(*args)
    except RunError as fault:
        yield error_of(key, fault)


def _load_tokenizer(section: str, node: DictConfig) -> tuple[Any | None, Problem | None]:
    """Load the tokenizer, with the chat template that the block sets. Returns it and None, or None and the
    problem of the key that names the tokenizer."""
    from verl.utils.tokenizer import hf_tokenizer

    key = "tokenizer_path" if node.get("tokenizer_path") else "path"
    name = os.path.expanduser(node[key])
    try:
        refuse_endless_files(name)
        offline = not Path(name).exists() and not hub_answers()
        trusted = bool(node.get("trust_remote_code"))
        tokenizer = hf_tokenizer(name, trust_remote_code=trusted, local_files_only=offline)
        refuse_empty_tokenizer(tokenizer)
    except Exception as fault:  # the Hub, the cache and the tokenizer's own code may raise anything
        text = f"cannot load the tokenizer of {node[key]}: {why_not_loaded(name, fault)}"
        remedy = "give a folder that has a model and its tokenizer, or a name on the Hub"
        return None, error(f"{section}.{key}", text, remedy)
    if node.get("custom_chat_template"):
        tokenizer.chat_template = node.custom_chat_template
    return tokenizer, None


def _check_template(section: str, node: DictConfig, tokenizer: Any) -> Problem | None:
    """Return a Problem if there is no chat template, or if rendering a short chat does not end."""
    key = f"{section}.path"
    if not tokenizer.chat_template:
        text = f"the tokenizer of {node.path} has no chat template"
        return error(key, text, f"set {section}.custom_chat_template")
    try:
        refuse_endless_template(tokenizer)
    except DataError as fault:
        return error(key, str(fault), f"set {section}.custom_chat_template, or use another model")
    return None


def check_quantisation(config: DictConfig, section: str = "actor_rollout_ref.model") -> Iterator[Problem]:
    """Check that no key asks for weights of 4 or 8 bits, since vLLM could not load the trained policy."""
    for key in (f"{node}.{name}" for node in (section, f"{section}.override_config") for name in _QUANTISED):
        if OmegaConf.select(config, key):
            text = "no weights of 4 or 8 bits (nf4, int8) are trained by this key: vLLM gets 16 bits"
            remedy = f"remove it, and set {section}.lora_rank=8: adapters in 16 bits"
            if section.startswith("actor"):
                remedy += f", or over weights in nf4 with {section}.external_lib={NF4_ENGINE}"
                remedy += " (hardware/one_gpu_24_nf4)"
            yield error(key, text, remedy)


def check_tags(
    protocol: Protocol, tokenizer: Any, key: str = "actor_rollout_ref.model.path"
) -> Iterator[Problem]:
    """Check that the tokenizer keeps every tag in decoding. If a tag is a special token, it would be missing
    in the text of turns."""
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
    """Check a protocol with `turns: chat`: the chat template must list tools and write earlier turns
    unchanged, and the engine must stop at the token with which the template ends a turn."""
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
    model = str(OmegaConf.select(config, key))
    model_ids = _model_stop_ids(model)
    if tokenizer.convert_tokens_to_ids(protocol.end_token) in {tokenizer.eos_token_id, *(model_ids or ())}:
        return
    remedy = "add its id to eos_token_id in the model's generation_config.json, or use the instruct model"
    end = f"the chat template ends a turn with {protocol.end_token!r}"
    if model_ids is None:
        text = f"{end}, and the Hub does not give generation_config.json, which says whether the engine stops"
        yield warning(key, text, f"download the model; if it does not name the token, {remedy}")
    else:
        yield error(key, f"{end}, at which the engine does not stop", remedy)


def _model_stop_ids(model: str) -> set[int] | None:
    """Return the ids at which the engine stops in addition to the tokenizer's own, which are `eos_token_id`
    in the model's generation_config.json. Returns None if the Hub does not provide that file."""
    file = Path(model).expanduser() / "generation_config.json"
    if is_hub_name(model):
        import httpx
        from huggingface_hub import hf_hub_download

        try:  # from the cache or the Hub: so far only the tokenizer may have been downloaded
            file = Path(hf_hub_download(model, file.name))
        except (OSError, ValueError, httpx.HTTPError):
            return None
    try:
        ids = read_json_file(file)["eos_token_id"]
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    return {item for item in (ids if isinstance(ids, list) else [ids]) if isinstance(item, int)}
