"""Composes a recipe with a user's overrides, and reports which overrides are wrong.

Hydra composes the configuration. Its errors are converted to sentences that name the key or file and the
remedy. A wrong override is left out and reported, so that one run of the checks finds all of them.

`check_overrides` serves commands that start a training only after they have made its data, which the
preflight needs, and `rag-r1 demo`, whose training has no preflight. It checks what does not depend on the
data: keys, types, numbers, and the block `rag_r1`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from rag_r1.config.recipes import KINDS, Recipe, kind_of, shipped_names
from rag_r1.config.unresolved import UnresolvedError, check_resolved
from rag_r1.options.arguments.overrides import is_override
from rag_r1.options.problems import PreflightReport, Problem, error, found
from rag_r1.options.suggestions import did_you_mean
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import FAULTS, StartChecks, StartError

if TYPE_CHECKING:
    from omegaconf import DictConfig

#: Sections at the top level of veRL's ppo_trainer.
_SECTIONS = ("actor_rollout_ref", "algorithm", "critic", "data", "trainer")
#: Blocks that veRL reads in every training, or from which other keys take their values.
_BLOCKS = (
    *(*_SECTIONS, "distillation", "rag_r1", "reward", "transfer_queue", "critic.model"),
    *(f"actor_rollout_ref.{name}" for name in ("actor", "model", "ref", "rollout")),
    *(f"actor_rollout_ref.actor.{name}" for name in ("checkpoint", "fsdp_config", "optim", "policy_loss")),
    *("actor_rollout_ref.rollout.checkpoint_engine", "checkpoint", "data.custom_cls"),
    *("trainer.v1", "trainer.v1.separate_async"),
)
#: Further blocks, which may be null.
_OPTIONAL_BLOCKS = (
    *("actor_rollout_ref.model.lora", "actor_rollout_ref.model.override_config"),
    *("algorithm.filter_groups", "algorithm.rollout_correction", "data.apply_chat_template_kwargs"),
)
#: The remedy for an override that Hydra's grammar refuses.
_QUOTING = (
    "close its brackets and quotes, and quote a text with spaces, commas, brackets, quotes, = or : twice, "
    """for the shell and for Hydra: 'key="a, b"'"""
)


def compose_recipe(recipe: Recipe, overrides: Sequence[str]) -> DictConfig:
    """Return the whole configuration, as veRL will see it. Warnings of bitsandbytes are silenced. Raises
    RunError naming the key or file if the recipe cannot be composed, or if a value in it cannot be read
    (rag_r1/config/unresolved.py)."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException, MissingConfigException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    # The checks import veRL, and with it bitsandbytes, which warns about kernels that no check uses.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    try:
        with initialize_config_dir(str(recipe.folder), version_base=None):
            config = compose(recipe.name, overrides=recipe.overrides_to_compose(overrides))
        if kind_of(recipe.path) or all(name in config for name in _SECTIONS):  # else it is a part of a recipe
            check_resolved(config, _BLOCKS)
        return config
    except RecursionError as fault:
        reason = "its defaults list leads back to itself, or its values are nested too deep"
        raise RunError(f"{recipe.path}: {reason}: name what it builds on, e.g. rag_r1/grpo") from fault
    except YAMLError as fault:
        raise RunError(_yaml_fault(recipe, fault)) from fault
    except MissingConfigException as fault:
        missing = str(fault.missing_cfg_file or "?").removesuffix(".yaml")
        hint = did_you_mean(missing.strip("/"), shipped_names()) or "correct its defaults list"
        raise RunError(f"{recipe.name} is built on {missing!r}, which is not there: {hint}") from fault
    except (UnresolvedError, HydraException, OmegaConfBaseException, TypeError) as fault:  # no such entry
        raise RunError(f"{recipe.name}: {fault}") from fault
    except (ValueError, AssertionError) as fault:  # of a defaults list, or of a group whose value is no name
        remedy = "correct its defaults list, or an override such as platform=NAME"
        raise RunError(f"{recipe.name}: {str(fault) or 'a default has no name'}: {remedy}") from fault


def _yaml_fault(recipe: Recipe, fault: Exception) -> str:
    """Return the message for invalid YAML in a recipe, or in a file that it is built on."""
    mark = getattr(fault, "problem_mark", None)
    location = f"{mark.name}, line {mark.line + 1}" if mark is not None else str(recipe.path)
    return f"{location}: not YAML ({getattr(fault, 'problem', None) or fault}): correct it"


def check_training(recipe: Recipe, config: DictConfig) -> None:
    """Raise RunError unless a composed recipe has all sections of a training by reinforcement learning."""
    if any(section not in config for section in _SECTIONS):
        kind = kind_of(recipe.path) or "train"
        training_remedy = "begin its defaults with - /ppo_trainer, or with a shipped recipe"
        remedy = training_remedy if kind == "train" else f"take `{KINDS[kind]}`"
        raise RunError(f"{recipe.name} is not a recipe for `rag-r1 train`: {remedy}")


@contextmanager
def reading_recipe(overrides: Sequence[str], *checks: Callable[[], object]) -> Iterator[None]:
    """Run a block that finds and composes a recipe. If it raises an error that the user can correct, wrong
    overrides and faults of `checks` are reported together with it in a StartError, since no preflight follows
    that would report them. Without any of these, and for any other error, it is raised unchanged."""
    with StartChecks() as start_checks:
        try:
            yield
        except FAULTS:
            wrong = filter(None, map(_problem_of_text, overrides))
            for sentence in PreflightReport(list(wrong)).sentences:
                start_checks.add(RunError(sentence))
            for check in checks:
                start_checks.run(check)
            raise


def compose_valid(recipe: Recipe, overrides: Sequence[str]) -> tuple[DictConfig, list[Problem]]:
    """Return the configuration without the wrong overrides, so that the rest can be checked, and a Problem
    for each of them: of several for a key, the last. Raises RunError if the fault is not in an override."""
    malformed = {override: problem for override in overrides if (problem := _problem_of_text(override))}
    valid, faults = [override for override in overrides if override not in malformed], []
    while True:
        try:
            config = compose_recipe(recipe, valid)
        except RunError as fault:
            named = (override for override in reversed(valid) if _is_named_by(fault.__cause__, override))
            wrong = next(named, None) or _first_override_with(fault, recipe, valid)
            if wrong is None:
                raise
            valid = [override for override in valid if override != wrong]
            faults.append((wrong, fault.__cause__))
        else:
            problems = [_override_problem(config, *fault) for fault in faults]
            return config, [*malformed.values(), *problems]


def check_composition(recipe: Recipe, overrides: Sequence[str]) -> DictConfig:
    """Return the whole configuration. Raises StartError with all wrong overrides, or RunError if the recipe
    does not compose without them."""
    config, problems = compose_valid(recipe, overrides)
    if problems:
        raise StartError(PreflightReport(problems).sentences)
    return config


def check_overrides(recipe: Recipe, overrides: Sequence[str]) -> DictConfig:
    """Return the whole configuration. Raises StartError with all wrong overrides, also those of a wrong type
    or value, or RunError if the recipe does not compose without them. Warnings are printed. Without overrides
    values are not checked, since that requires veRL, whose import takes half a minute on a busy machine."""
    if not overrides:
        return check_composition(recipe, overrides)
    config, problems = compose_valid(recipe, overrides)
    from rag_r1.training.preflight import NUMBERS, sft
    from rag_r1.training.preflight.sampler import check_group_size
    from rag_r1.training.preflight.settings import check_rag_r1_keys, wrong_types
    from rag_r1.training.preflight.verls_keys.values import check_values

    if "rag_r1" in config:
        problems += [*wrong_types(config, NUMBERS), *check_rag_r1_keys(config)[1]]
        problems += found(check_group_size, config)
    else:
        problems += wrong_types(config, sft.NUMBERS)
    problems += found(check_values, config)
    for problem in problems:
        if problem.level == "warning":
            print(problem, file=sys.stderr)
    if sentences := PreflightReport(problems).sentences:
        raise StartError(sentences)
    return config


def refuse_own_keys(overrides: Sequence[str], own_keys: Collection[str], command: str, hint: str) -> None:
    """Raise StartError with the overrides of keys that a command sets itself. `hint` says what decides on
    their values."""
    keys = [override.lstrip("+~").partition("=")[0] for override in overrides]
    if wrong_keys := [key for key in keys if key in own_keys]:
        remedy = f"leave it out ({hint})"
        raise StartError([f"{key}: {command} sets this key itself: {remedy}" for key in wrong_keys])


def _problem_of_text(override: str) -> Problem | None:
    """Return the Problem that an override has in any recipe: it cannot be read, or it replaces a whole block
    by a single value or a list, such as `data=null`. A text may be an interpolation or, without a dot in the
    key, the name of a group's file."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import OverrideParseException

    if not is_override(override) or override.lstrip("+~").startswith("="):
        return error(override, "this is not key=value or ~key", "give it a value, or its flag before it")
    try:
        [parsed] = OverridesParser.create().parse_overrides([override])
    except OverrideParseException:
        key = override.lstrip("+~").partition("=")[0]
        return error(key, f"{override!r} cannot be read as key=value", _QUOTING)
    key = parsed.key_or_group
    if key not in (*_BLOCKS, *_OPTIONAL_BLOCKS) or parsed.is_delete():
        return None
    value, text = parsed.value(), override.partition("=")[2]
    is_name_of_block = isinstance(value, str) and ("." not in key or value.startswith("${"))
    if isinstance(value, dict) or is_name_of_block or (value is None and key in _OPTIONAL_BLOCKS):
        return None
    return error(key, f"is a block of keys, not {text}", f"set a key of it: {key}.KEY=VALUE")


def _is_named_by(fault: BaseException | None, override: str) -> bool:
    """Return whether Hydra's error names this override, its key or its group's file. An UnresolvedError may
    name the key of another override than the one that causes it."""
    key, _, value = override.lstrip("+~").partition("=")
    names = (f"'{key}'", f"'{key}/{value}'", f"/{key}/{value}'", override)  # the third: of +group=value
    return not isinstance(fault, UnresolvedError) and any(name in str(fault) for name in names)


def _first_override_with(fault: RunError, recipe: Recipe, overrides: Sequence[str]) -> str | None:
    """Return the override that causes a fault which names no override. It is found by adding one override at
    a time. Returns None if the recipe has the fault without overrides."""
    for count in range(len(overrides) + 1):
        try:
            compose_recipe(recipe, overrides[:count])
        except RunError as other_fault:
            if str(other_fault) == str(fault):
                return overrides[count - 1] if count else None
    return None


def _override_problem(config: DictConfig, override: str, fault: BaseException) -> Problem:
    """Return the Problem of an override for which Hydra raised `fault`. `config` is composed without it."""
    from omegaconf import OmegaConf

    key, _, value = override.lstrip("+~").partition("=")
    message = str(fault)
    if (path := _list_without_entry(config, key)) is not None:
        remedy = f"give the number of an entry, as in {path}.0, or the whole list"
        return error(key, f"{path} is a list of {len(OmegaConf.select(config, path))}", remedy)
    if key == "preset" and override.startswith("+"):
        text = "with a +, Hydra looks for the preset in the folder of the recipe"
        return error(key, text, f"write {override.lstrip('+')}")
    if key == "preset" and "Could not override" in message:
        remedy = f"in a file of your own: defaults: [the recipe, /preset: {value}, _self_]"
        return error(key, "the defaults list of this recipe has no preset to replace", remedy)
    if OmegaConf.is_dict(OmegaConf.select(config, key)) and value and not value.startswith("{"):
        return error(key, f"is a block of keys, not {value}", f"set a key of it: {key}.KEY=VALUE")
    if isinstance(fault, UnresolvedError):
        return fault.problem_of(override)
    if OmegaConf.is_list(OmegaConf.select(config, key)) and value:
        return error(key, f"is a list, not {value}", f"write {key}=[...]")
    if "Could not override" in message:
        key = _unknown_key(config, override)
        return error(key, "there is no such key", _key_hint(config, key))
    if options := getattr(fault, "options", None):  # of a MissingConfigException of Hydra
        return error(key, f"there is no {key} {value!r}", f"use one of {', '.join(options)}")
    return error(key, " ".join(message.split()), "correct the override")


def _list_without_entry(config: DictConfig, key: str) -> str | None:
    """Return the path of the list in which a key names an entry that does not exist; None for other keys."""
    from omegaconf import OmegaConf

    names = key.split(".")
    for count in range(1, len(names)):
        node = OmegaConf.select(config, path := ".".join(names[:count]))
        if OmegaConf.is_list(node):
            return None if names[count] in map(str, range(len(node))) else path
    return None


def _unknown_key(config: DictConfig, override: str) -> str:
    """Return the key that an override gives and the configuration does not have. It may be a key in the
    override's value, as in `trainer={a: 1}`."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    def unknown_keys(node: Any, value: object, key: str) -> Iterator[str]:
        if isinstance(value, dict) and OmegaConf.is_dict(node):
            for name, inner in value.items():
                path = f"{key}.{name}"
                yield from unknown_keys(node.get(name), inner, path) if name in node else [path]

    [parsed] = OverridesParser.create().parse_overrides([override])
    key = parsed.key_or_group
    return next(unknown_keys(OmegaConf.select(config, key), parsed.value(), key), key)


def _key_hint(config: DictConfig, key: str) -> str:
    """Return a hint for an unknown key: the most similar existing key, and all keys of the same block."""
    from omegaconf import OmegaConf

    node, path, names = config, [], key.split(".")
    while len(names) > 1 and (OmegaConf.is_list(node) or (OmegaConf.is_dict(node) and names[0] in node)):
        node = OmegaConf.select(node, names[0])
        path.append(names.pop(0))
    if not OmegaConf.is_dict(node):
        return f"{'.'.join(path)} is a value, and has no keys"
    if not node:
        return f"add it: +{key}=VALUE"
    matches = get_close_matches(names[0], map(str, node), n=1)
    hint = f"did you mean {'.'.join([*path, matches[0], *names[1:]])}? " if matches else ""
    return f"{hint}{'.'.join(path) or 'the configuration'} has {', '.join(map(str, node))}"
