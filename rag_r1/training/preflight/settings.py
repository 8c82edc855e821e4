"""Checks settings that need no data, and of the model only its config.json: keys, types, lengths and losses.

This includes the block `rag_r1:` with its rewards and tools. verls_keys/ has checks of veRL's keys alone.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf

from rag_r1.config.schema import RagR1Config, find_faults
from rag_r1.config.search_faults import search_faults
from rag_r1.inference.model_folders.model_config import model_config
from rag_r1.options.declare import OptionsError
from rag_r1.options.import_path import ImportPathError
from rag_r1.options.problems import Problem, error, is_unset, plain, problem_of_fault, warning
from rag_r1.protocols import SEARCH
from rag_r1.rewards import RewardSum
from rag_r1.tools.registry import make_tool
from rag_r1.training.config_facts import is_separate

_ACTOR = "actor_rollout_ref.actor"
_LOSS = f"{_ACTOR}.policy_loss"
_BYPASS = "algorithm.rollout_correction.bypass_mode"
_SYNC = "trainer.v1.separate_async.parameter_sync_step"

#: The ends of keys whose number may be -1.
_MAY_BE_OFF = ("_freq", "_max_samples", "_to_keep")
#: The ends of keys whose number may be null, for no limit or for one that follows from other keys.
_MAY_BE_NULL = ("_samples", "_to_keep", "max_model_len", "training_steps", "log_prob_max_token_len_per_gpu")
#: Keys that a user must give -> an example.
_EXAMPLES = {
    "actor_rollout_ref.model.path": "a model folder, or a name on the Hugging Face Hub",
    "data.train_files": "a parquet file made by `rag-r1 data`",
    "data.val_files": "a parquet file made by `rag-r1 data`",
    "trainer.default_local_dir": "the folder of the run",
    "rag_r1.retriever.url": "the address of a retrieval server, e.g. http://127.0.0.1:8000",
}
#: The block of a reward model. veRL leaves its engine open, which has to be set only if there is such a
#: model.
_REWARD_MODEL = "reward.reward_model"


def check_required_keys(config: DictConfig) -> Iterator[Problem]:
    """Check that the keys which a recipe leaves open (null or `???`) are set, if they are ours or have an
    example."""
    open_keys = {key for key in OmegaConf.missing_keys(config) if key.startswith("rag_r1.")}
    open_keys |= {key for key in _EXAMPLES if is_blank(config, key)}
    for key in sorted(open_keys):
        yield error(key, "must be given", f"add {key}=<{_EXAMPLES.get(key, 'value')}>")


def is_blank(config: DictConfig, key: str) -> bool:
    """Return whether a key is unset or, unless it is that of a model or a server, whose checks refuse an
    empty text, an empty text or an empty list."""
    if is_unset(config, key):
        return True
    return key.startswith(("data.", "trainer.")) and plain(OmegaConf.select(config, key)) in ("", [])


def check_verls_keys(config: DictConfig, exempt: Collection[str] = _EXAMPLES) -> Iterator[Problem]:
    """Check that no other key is `???`, because reading it would raise an error of OmegaConf, in veRL or in
    another check. Keys in `exempt` are checked elsewhere."""
    unused = () if OmegaConf.select(config, f"{_REWARD_MODEL}.enable") else (f"{_REWARD_MODEL}.",)
    for key in sorted(OmegaConf.missing_keys(config)):
        if key not in exempt and not key.startswith(("rag_r1.", *unused)):
            remedy = "set it to vllm" if key.endswith("rollout.name") else f"set it: {key}=VALUE"
            yield error(key, "must be given", remedy)


def check_rag_r1_keys(config: DictConfig) -> tuple[RagR1Config | None, list[Problem]]:
    """Read the block `rag_r1:`. Returns its settings and the problems.

    The problems are all unknown keys and wrong values of all sections, wrong reward terms, and wrong keys of
    tools. Even with problems, the settings can be used for further checks; they are None if there is no such
    block (`RagR1Config.read`).
    """
    settings, faults = RagR1Config.read(plain(config.get("rag_r1")))
    if settings is not None:
        tokens = OmegaConf.select(config, "data.max_response_length")
        for validation in (False, True) if _is_number(tokens, whole=True) and tokens >= 1 else ():
            try:
                settings.budget(tokens, validation=validation)
            except ValueError as fault:
                if str(fault) not in map(str, faults):
                    faults.append(fault)
        if settings.reward:
            faults += RewardSum.read(settings.reward, settings.protocol)[1]
        faults += find_faults(lambda _: settings.check_turns(), {})
        faults += search_faults(settings) + _tool_faults(settings)
        faults += find_faults(lambda _: settings.check_paths(), {})
    return settings, [problem_of_fault(fault) for fault in faults]


def _tool_faults(settings: RagR1Config) -> list[Exception]:
    """Return the faults of the entries under `rag_r1.tools`, and one for each tool that the protocol calls
    but that is missing."""
    faults: list[Exception] = []
    for name, entry in settings.tools.items():
        try:
            make_tool(name, entry)
        except OptionsError as fault:
            faults += fault.faults
        except (ImportPathError, ValueError) as fault:
            faults.append(fault)
        except Exception as fault:  # a user's factory may raise anything
            faults.append(ValueError(f"rag_r1.tools.{name}: the factory raises {fault!r}"))
    called = settings.protocol.tools_called if settings.protocol is not None else []
    for name in called:
        if name not in (SEARCH, *settings.tools):
            text = f"rag_r1.tools.{name} must be given: the protocol {settings.protocol.name!r} calls it"
            faults.append(ValueError(text))
    return faults


def check_numbers(config: DictConfig, keys: Iterable[str]) -> Iterator[Problem]:
    """Check that these keys are whole numbers, of at least 1 unless the key is an interval (`*_freq`) or a
    limit (`*_max_samples`, `*_to_keep`), which -1 turns off. Only the keys in `_MAY_BE_NULL` may be unset."""
    for key in keys:
        value = None if is_unset(config, key) else OmegaConf.select(config, key)
        if value is None and not key.endswith(_MAY_BE_NULL):
            yield error(key, "is null, which is not a number", "give a whole number")
        elif value is not None and not _is_number(value):
            yield error(key, f"is {value!r}, which is not a number", "give a whole number")
        elif value is not None and (value != int(value) or (value < 1 and not key.endswith(_MAY_BE_OFF))):
            yield error(key, f"is {value!r}", "give a whole number of at least 1")


def _is_number(value: Any, *, whole: bool = False) -> bool:
    """Return whether a value is a number, or with `whole` a whole one."""
    # The checks calculate with floats, which an int of 400 digits exceeds.
    return type(value) in (int, float) and abs(value) < 1e300 and not (whole and value % 1)


def wrong_types(config: DictConfig, numbers: Iterable[str]) -> list[Problem]:
    """Return the Problems of `check_numbers` for these keys, and those of `check_types` for all others."""
    wrong = list(check_numbers(config, numbers))
    return wrong + list(check_types(config, {problem.where for problem in wrong}))


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def check_types(config: DictConfig, exempt: Collection[str] = ()) -> Iterator[Problem]:
    """Check that the values of numbers, switches and lists of names, as veRL declares them, have the right
    type.

    A block names in `_target_` the dataclass that is made from it, but veRL does not check the types. A
    learning rate `fast` would end the run when the optimizer is made, and a switch `off`, which is a text for
    Hydra, would count as on. Keys in `exempt` have a Problem already.
    """
    for key, value, types in _declared_keys(config):
        if key in exempt:
            continue
        shown = "null" if value is None else repr(value)
        if types == {bool} and not isinstance(value, bool):
            yield error(key, f"is {shown}, which is neither true nor false", "give true or false")
        elif types and types <= {int, float} and not _is_number(value, whole=float not in types):
            kind = "a number" if float in types else "a whole number"
            yield error(key, f"is {shown}, which is not {kind}", f"give {kind}")
        elif types == {list[str]} and not _are_texts(plain(value)):
            yield error(key, f"is {shown}, which is not a list of names", "give a list, as [NAME,NAME]")
        elif key.endswith("optim.lr") and types <= {int, float} and value < 0:
            yield error(key, f"is {value!r}, a learning rate below 0", "give a number of at least 0")


def _declared_keys(node: DictConfig, path: str = "") -> Iterator[tuple[str, Any, set[type]]]:
    """Yield the keys below a node that a dataclass declares, with their values and their types without None.
    Keys that are missing, or null where that is allowed, and interpolations of other keys are left out."""
    hints = _hints(node)
    for name in map(str, node):
        if OmegaConf.is_missing(node, name) or OmegaConf.is_interpolation(node, name):
            continue
        key, value = f"{path}.{name}" if path else name, node[name]
        if OmegaConf.is_dict(value):
            yield from _declared_keys(value, key)
        elif name in hints:
            hint = hints[name]
            types = set(get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,))
            if value is not None or NoneType not in types:
                yield key, value, types - {NoneType}


def _hints(node: DictConfig) -> dict[str, Any]:
    """Return the types of the fields of veRL's dataclass that `_target_` names; {} if it names none."""
    module, _, name = str(OmegaConf.select(node, "_target_") or "").rpartition(".")
    if not module.startswith("verl."):
        return {}
    try:
        cls = getattr(importlib.import_module(module), name)
        return get_type_hints(cls) if dataclasses.is_dataclass(cls) else {}
    except (ImportError, AttributeError, NameError):  # veRL reports it when it makes the object
        return {}


def check_lengths(config: DictConfig) -> Iterator[Problem]:
    """Check that prompt, response and turn fit into the context of the engine and of the model."""
    limit_key = "actor_rollout_ref.rollout.max_model_len"
    limit = OmegaConf.select(config, limit_key)
    positions = _model_positions(config)
    if positions is not None and (limit is None or limit > positions):
        if limit is not None:
            text = f"{limit} is more than the model's own limit, max_position_embeddings={positions}"
            yield error(limit_key, text, f"set it to at most {positions}")
        limit, limit_key = positions, "the model's max_position_embeddings"
    prompt, response = config.data.max_prompt_length, config.data.max_response_length
    if limit is not None and prompt + response > limit:
        text = f"{prompt} + {response} = {prompt + response} tokens do not fit into {limit_key}={limit}"
        remedy = "lower data.max_prompt_length or data.max_response_length, or raise rollout.max_model_len"
        yield error("data.max_prompt_length + data.max_response_length", text, remedy)
    for key in ("rag_r1.agent.max_turn_tokens", "rag_r1.validation_agent.max_turn_tokens"):
        turn = OmegaConf.select(config, key)
        if isinstance(turn, int) and turn > response:
            text = f"a turn of {turn} tokens does not fit into data.max_response_length={response}"
            yield error(key, text, "lower the turn or raise the response length")


def _model_positions(config: DictConfig) -> int | None:
    """Return the model's longest context according to a local `config.json`; None if it is not known."""
    model = config.actor_rollout_ref.model
    if is_unset(config, "actor_rollout_ref.model.path") or "rope_scaling" in (model.override_config or {}):
        return None
    value = model_config(Path(str(model.path)).expanduser()).get("max_position_embeddings")
    return value if isinstance(value, int) else None


def check_log_probs(config: DictConfig) -> Iterator[Problem]:
    """Check that the engine returns log-probs if they are needed: with `bypass_mode`, and if `max_state`
    limits the state of the memory, which is a sum of log-probs. With `bypass_mode` veRL corrects nothing."""
    correction = OmegaConf.select(config, "algorithm.rollout_correction") or {}
    is_bypassed = bool(correction.get("bypass_mode"))
    if is_bypassed and (correction.get("rollout_is") or correction.get("rollout_rs")):
        yield warning(_BYPASS, "with it rollout_is and rollout_rs have no effect", "set it to false")
    if config.actor_rollout_ref.rollout.calculate_log_probs:
        return
    if is_bypassed:
        text = "takes the old log-probs from the engine, which does not return them"
        yield error(_BYPASS, text, "set actor_rollout_ref.rollout.calculate_log_probs=true, or this to false")
    for key in ("rag_r1.agent.max_state", "rag_r1.validation_agent.max_state"):
        if OmegaConf.select(config, key) is not None:
            text = "the state of the memory is a sum of log-probs, which the engine does not return"
            remedy = "set actor_rollout_ref.rollout.calculate_log_probs=true, or this to null"
            yield error(key, text, remedy)


def check_weights(config: DictConfig, settings: RagR1Config | None) -> Iterator[Problem]:
    """Warn if all terms of the reward have the weight 0."""
    if settings is None or config.reward.reward_manager.name != "search":
        return
    reward, faults = RewardSum.read([dict(item) for item in settings.reward], settings.protocol)
    if reward.terms and not faults and not any(reward.weights.values()):
        yield warning("rag_r1.reward", "every term has the weight 0, so every reward is 0", "raise a weight")


def check_llds(config: DictConfig) -> Iterator[Problem]:
    """Check that the loss `llds` (rag_r1/plugin/algorithms/llds.py), if used, has a coefficient and an
    effect.

    LLDS compares the policy with the old log-probs, from which the first update of a step starts. So the
    penalty is always 0 if a step has only one update. With `bypass_mode` the old log-probs are vLLM's, so
    LLDS also punishes the differences between vLLM and the trainer.
    """
    loss = OmegaConf.select(config, _LOSS)
    if loss is None or loss.get("loss_mode") != "llds":
        return
    if loss.get("llds_coef") is None:
        text = "the loss `llds` has no coefficient llds_coef"
        remedy = "use preset=llds, or set this to rag_r1.plugin.algorithms.llds.LLDSConfig, and llds_coef=0.2"
        yield error(f"{_LOSS}._target_", text, remedy)
    yield from _check_updates(config)
    if OmegaConf.select(config, _BYPASS):
        text = (
            "LLDS then compares with vLLM's log-probs, and punishes where those differ from the trainer's,"
            " even if the policy has not moved"
        )
        yield warning(_BYPASS, text, "set it to false: one more forward pass a step")


def _check_updates(config: DictConfig) -> Iterator[Problem]:
    """Check that the policy moves away from the old log-probs: within a step by several updates or, with
    separate GPUs, over several steps, after which the generating weights are renewed."""
    batch, actor = int(config.data.train_batch_size), config.actor_rollout_ref.actor
    prompts, epochs = int(actor.ppo_mini_batch_size), actor.get("ppo_epochs")
    steps = OmegaConf.select(config, _SYNC) if is_separate(config) else 1
    if prompts < batch or epochs != 1 or (isinstance(steps, int) and steps > 1):
        return
    text = (
        f"is {prompts}, all of data.train_batch_size={batch}, and {_ACTOR}.ppo_epochs is 1: the only update"
        " of a step starts from the policy with which LLDS compares, so LLDS is exactly 0"
    )
    smaller = f"set it to {max(batch // 4, 1)}, say, or " if batch > 1 else "set "
    yield warning(f"{_ACTOR}.ppo_mini_batch_size", text, f"{smaller}{_ACTOR}.ppo_epochs=2")
