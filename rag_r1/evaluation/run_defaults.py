"""Takes the defaults of an evaluation from the folder of a run: `rag-r1 eval RUN`.

A training (`rag-r1 train`, `stages`, `demo`) has its composed configuration in RUN/hydra. Its newest
checkpoint is evaluated with the limits, prompt, search and questions of its validation; if RUN/index exists,
a retrieval server is started for it. An evaluation has RUN/settings.yaml, all of which is taken except the
output folder. Flags on the command line replace these defaults.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.inference.model_folders import newest_checkpoint
from rag_r1.io.bounded_yaml import YamlError, read_yaml
from rag_r1.io.terminal_text import terminal_lines
from rag_r1.options.arguments.errors import ArgumentsError
from rag_r1.options.command_line import names_flag
from rag_r1.options.problems import plain
from rag_r1.options.settings_file import SETTINGS, owner_of, read_settings
from rag_r1.runs.errors import RunError
from rag_r1.system.installation import pip_command

#: The file with the configuration that Hydra composed, in the folder of a training.
CONFIG = Path("hydra", ".hydra", "config.yaml")
#: Keys of a search that affect its results, with their default values. A key becomes an override unless it
#: has its default value. If the tool is not `retrieval`, all of its keys are taken.
_SEARCH_KEYS = {"tool": "retrieval", "wire": "retrieve", "topk": None, "agentic_input": False, "mode": None}
#: Limits of an episode with their default values, as in _SEARCH_KEYS.
_LIMITS = {
    "max_turns": None,
    "final_turn": True,
    "max_turn_tokens": None,
    "max_query_observation_tokens": None,
    "max_observation_tokens": None,
    "min_turn_tokens": 16,
    "max_episode_tokens": None,
    "min_actions": 0,
    "max_state": None,
}
#: The command whose runs are evaluated again.
_COMMAND = "rag-r1 eval"
#: The default address of a retrieval server.
SEARCH_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True)
class RunDefaults:
    """Default arguments of an evaluation, taken from a run."""

    #: Values of EvalArguments by name.
    values: dict[str, Any]
    #: The file or folder from which each value was taken.
    sources: dict[str, Path]
    #: The tokenizer of the newest checkpoint, for a model that is served at --base-url.
    tokenizer: Path | None = None

    def complete(self, args: EvalArguments, command_line: Sequence[str]) -> EvalArguments:
        """Return `args`, which were read from the command line with these values as defaults, in a consistent
        form: without the run's index if the command line or a settings file names a retrieval server, and
        with the run's tokenizer if the model is served at --base-url."""
        # The address may also stand in a settings file.
        is_other_url = args.retriever_url != self.values.get("retriever_url", SEARCH_URL)
        is_named = is_other_url or names_flag(command_line, "--retriever-url")
        if args.serve_index is not None and is_named:
            args = args.changed(serve_index=None)
        if args.base_url is not None and args.tokenizer is None and self.tokenizer is not None:
            args = args.changed(tokenizer=str(self.tokenizer))
        return args

    def lines(self, args: EvalArguments) -> list[str]:
        """Return a line for each source, with the names and values that the arguments have taken from it,
        made safe for a terminal. Empty lists are left out."""
        used: dict[Path, list[str]] = {}
        for name, source in self.sources.items():
            texts, defaults = _texts(getattr(args, name)), _texts(self.values[name])
            # The command line may have added to a list of the run, such as its overrides.
            if defaults and texts[: len(defaults)] == defaults:
                used.setdefault(source, []).append(f"{name} {' '.join(defaults)}")
        return [terminal_lines(f"from {source}: {', '.join(values)}") for source, values in used.items()]


def _texts(value: Any) -> list[str]:
    """Return the items of an argument's value as texts."""
    return list(map(str, value if isinstance(value, list) else [value]))


def defaults_of(run: Path) -> RunDefaults:
    """Return the defaults of an evaluation from the folder of a run. Raises RunError if the folder cannot be
    read, or belongs neither to a training nor to an evaluation."""
    if (config := config_file(run)) is not None:
        return _of_training(run, config)
    path = run / SETTINGS
    if not run.is_dir():
        remedy = "`rag-r1 runs FOLDER` lists the runs below a folder"
        raise RunError(f"{run} is neither the folder of a run nor a subcommand of `rag-r1 eval`: {remedy}")
    if not path.is_file():
        raise RunError(
            f"{run} is not a run that can be evaluated: it has neither {CONFIG}, as a training has, nor "
            f"{SETTINGS}, as an evaluation has: give the folder of one"
        )
    if (owner := owner_of(run)) not in (None, _COMMAND):
        raise RunError(f"{run} is the folder of a run of `{owner}`: {_remedy(run, str(owner))}")
    try:
        values = read_settings(path, EvalArguments)
    except ArgumentsError as error:
        raise RunError(f"{error}; give the folder of a training or of `rag-r1 eval`") from error
    values = {name: value for name, value in values.items() if name != "out"}
    return RunDefaults(values, dict.fromkeys(values, path))


def _remedy(run: Path, owner: str) -> str:
    """Return what to do with the folder of a run of another command: evaluate the training or the evaluation
    inside it, or what it has made."""
    folders = [path for path in sorted(run.iterdir()) if path.is_dir()]
    inner = [path for path in folders if config_file(path) or owner_of(path) == _COMMAND]
    if inner:
        return f"give a run inside it, such as {inner[-1]}"
    if (model := run / "model" / "config.json").is_file():
        return f"give its model with --model {model.parent}, and --questions"
    return "give the folder of a training or of `rag-r1 eval`, or --model and --questions"


def config_file(run: Path) -> Path | None:
    """Return the file with a training's composed configuration; None if there is none. `run` is the folder
    of the training, or the folder of checkpoints inside it."""
    folders = [run] if newest_checkpoint(run) is None else [run, run.parent]
    return next((path for folder in folders if (path := folder / CONFIG).is_file()), None)


def validation_arguments(config: Any) -> dict[str, Any]:
    """Return arguments with which an evaluation plays as the validation of a training does, except for the
    model and the output folder. `config` is the composed configuration, a DictConfig of OmegaConf."""
    from omegaconf import OmegaConf  # imported here, because the base installation lacks it

    block = config.rag_r1
    agent = {**(block.get("agent") or {}), **(block.get("validation_agent") or {})}
    search = {**(plain(block.get("retriever")) or {}), **(plain(block.get("validation_retriever")) or {})}
    url = search.pop("url", None)
    has_other_tool = search.get("tool") not in (None, _SEARCH_KEYS["tool"])
    search_keys = {**dict.fromkeys(search), **_SEARCH_KEYS} if has_other_tool else _SEARCH_KEYS
    overrides = [
        f"rag_r1.{section}.{name}={_override_text(values[name])}"
        for section, values, defaults in (("agent", agent, _LIMITS), ("retriever", search, search_keys))
        for name, default in defaults.items()
        if values.get(name, default) != default
    ]
    if tools := OmegaConf.to_container(OmegaConf.create(block.get("tools") or {}), resolve=True):
        overrides.append(f"rag_r1.tools={json.dumps(tools)}")
    files = config.data.val_files
    return {
        "questions": [files] if isinstance(files, str) else list(files or ()),
        "protocol": str(block.protocol),
        **({"prompt": str(block.prompt)} if block.get("prompt") else {}),
        "retriever_url": SEARCH_URL if url in (None, "", "???") else url,  # another tool may need none
        "max_prompt_tokens": config.data.max_prompt_length,
        "max_response_tokens": config.data.max_response_length,
        "overrides": overrides,
    }


def _of_training(run: Path, path: Path) -> RunDefaults:
    """Return the defaults from a training in `run`, whose configuration is `path`. Raises RunError."""
    try:  # imported here, because the base installation lacks it
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
    except ModuleNotFoundError as error:
        message = f"{path} is read with omegaconf, which is not installed: {pip_command('cpu')}"
        raise RunError(message) from error
    folder = path.parents[len(CONFIG.parts) - 1]
    try:
        config = OmegaConf.create(read_yaml(path))
        if "rag_r1" not in config:
            raise ValueError("it has no rag_r1 block; for a fine-tuned model, give --model RUN/model instead")
        values = validation_arguments(config)
        values["questions"] = [_find_moved(Path(file), folder) for file in values["questions"]]
        configured_folder = Path(os.path.expanduser(config.trainer.default_local_dir))
    except (OSError, YamlError, OmegaConfBaseException, AttributeError, TypeError, ValueError) as error:
        raise RunError(f"{path} is not the configuration of a training: {error}") from error
    sources = dict.fromkeys(values, path)
    values["out"] = folder / "evaluation"  # without a source, since it is not taken from the run
    index = folder / "index"
    if (index / "manifest.json").is_file():
        values["serve_index"], sources["serve_index"] = index, index
        del values["retriever_url"], sources["retriever_url"]  # the training's server does not run any more
    tokenizer = None
    for checkpoints in (run, folder / "checkpoints", configured_folder):
        if (newest := newest_checkpoint(checkpoints)) is not None:
            values["model"], sources["model"] = str(newest), checkpoints
            model_folder = newest / "actor" / "huggingface"
            tokenizer = model_folder if (model_folder / "tokenizer_config.json").is_file() else None
            break
    return RunDefaults(values, sources, tokenizer)


def _override_text(value: Any) -> str:
    """Return a value as the text of an override, which is read as YAML."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**9)
    return text.removesuffix("\n").removesuffix("\n...")


def _find_moved(file: Path, run: Path) -> Path:
    """Return the path of a training's file. If it is missing, return that of the same file below `run`, the
    training's folder, which may have been moved or renamed."""
    candidate = run / file.parent.name / file.name
    return candidate if not file.exists() and candidate.exists() else file
