"""Takes the defaults of an evaluation from the folder of a run: `rag-r1 eval RUN`.

A training (`rag-r1 train`, `stages`, `demo`) leaves its composed configuration in RUN/hydra. Its newest
checkpoint is evaluated with the limits, prompt, search and questions of its validation, and with a retrieval
server for RUN/index if there is one. An evaluation leaves RUN/settings.yaml, all of which is taken except the
folder. Flags replace what is taken.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.inference.model_folders import newest_checkpoint
from rag_r1.io.bounded_yaml import YamlError, read_yaml
from rag_r1.options.argument_values import ArgumentsError
from rag_r1.options.settings_file import SETTINGS, read_settings
from rag_r1.runs.errors import RunError
from rag_r1.system.installation import pip_command

#: The file in which Hydra writes the composed configuration, in the folder of a training.
CONFIG = Path("hydra", ".hydra", "config.yaml")
#: Keys of a search that decide what it finds, with the default values, which are left out; None: never.
_SEARCH_KEYS = {"tool": "retrieval", "wire": "retrieve", "topk": None, "agentic_input": False, "mode": None}
#: Limits of an episode, with the default values, which are left out; None: never.
_LIMITS = {
    "max_turns": None,
    "final_turn": True,
    "max_turn_tokens": None,
    "max_query_observation_tokens": None,
    "min_actions": 0,
    "max_state": None,
}
#: The address of a retrieval server that was started as its `--help` says.
SEARCH_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True)
class RunDefaults:
    """Arguments of an evaluation from a run: `values` of EvalArguments by name, and `sources`, the file or
    folder of each. `tokenizer`: that of the newest checkpoint, for a model that is served elsewhere."""

    values: dict[str, Any]
    sources: dict[str, Path]
    tokenizer: Path | None = None

    def complete(self, args: EvalArguments, words: Sequence[str]) -> EvalArguments:
        """Returns the arguments that a command line, `words`, has made with these defaults: without the index
        of the run if it names a retrieval server, and with the tokenizer of the run if the model is
        served."""
        if args.serve_index is not None and any(word.startswith("--retriever-url") for word in words):
            args = args.changed(serve_index=None)
        if args.base_url is not None and args.tokenizer is None and self.tokenizer is not None:
            args = args.changed(tokenizer=str(self.tokenizer))
        return args

    def lines(self, args: EvalArguments) -> list[str]:
        """Returns what the arguments have taken from the run: a line for each source, with names and
        values."""
        used: dict[Path, list[str]] = {}
        for name, source in self.sources.items():
            texts, defaults = _texts(getattr(args, name)), _texts(self.values[name])
            if texts[: len(defaults)] == defaults:
                used.setdefault(source, []).append(f"{name} {' '.join(defaults)}")
        return [f"from {source}: {', '.join(values)}" for source, values in used.items()]


def _texts(value: Any) -> list[str]:
    """The items of an argument's value as texts."""
    return list(map(str, value if isinstance(value, list) else [value]))


def defaults_of(run: Path) -> RunDefaults:
    """Returns the defaults of an evaluation from the folder of a run. Raises RunError if the folder belongs
    neither to a training nor to an evaluation, or cannot be read."""
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
    try:
        values = read_settings(path, EvalArguments)
    except ArgumentsError as error:
        raise RunError(f"{error}; give the folder of a training or of `rag-r1 eval`") from error
    values = {name: value for name, value in values.items() if name != "out"}
    return RunDefaults(values, dict.fromkeys(values, path))


def config_file(run: Path) -> Path | None:
    """Returns the file of a training's composed configuration, from its folder or that of its checkpoints in
    it; None if there is none."""
    folders = [run] if newest_checkpoint(run) is None else [run, run.parent]
    return next((path for folder in folders if (path := folder / CONFIG).is_file()), None)


def validation_arguments(config: Any) -> dict[str, Any]:
    """Returns the arguments of an evaluation that plays as the validation of a training does, without model
    and folder. `config`: the composed configuration, an OmegaConf."""
    from omegaconf import OmegaConf  # here, because the base installation does not have it

    ours = config.rag_r1
    agent = {**(ours.get("agent") or {}), **(ours.get("validation_agent") or {})}
    search = {**(ours.get("retriever") or {}), **(ours.get("validation_retriever") or {})}
    overrides = [
        f"rag_r1.{section}.{name}={_word(values[name])}"
        for section, values, usual in (("agent", agent, _LIMITS), ("retriever", search, _SEARCH_KEYS))
        for name, default in usual.items()
        if values.get(name, default) != default
    ]
    if tools := OmegaConf.to_container(OmegaConf.create(ours.get("tools") or {}), resolve=True):
        overrides.append(f"rag_r1.tools={json.dumps(tools)}")
    files = config.data.val_files
    return {
        "questions": [files] if isinstance(files, str) else list(files or ()),
        "protocol": str(ours.protocol),
        **({"prompt": str(ours.prompt)} if ours.get("prompt") else {}),
        "retriever_url": search.get("url") or SEARCH_URL,
        "max_prompt_tokens": config.data.max_prompt_length,
        "max_response_tokens": config.data.max_response_length,
        "overrides": overrides,
    }


def _of_training(run: Path, path: Path) -> RunDefaults:
    """Returns the defaults from the configuration `path` of a training. Raises RunError."""
    try:  # here, because the base installation does not have it
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
    except ModuleNotFoundError as error:
        raise RunError(
            f"{path} is read with omegaconf, which is not installed: {pip_command('cpu')}"
        ) from error
    try:
        config = OmegaConf.create(read_yaml(path))
        if "rag_r1" not in config:
            raise ValueError("it has no rag_r1 block; for a fine-tuned model, give --model RUN/model instead")
        values = validation_arguments(config)
        configured_folder = Path(config.trainer.default_local_dir).expanduser()
    except (OSError, YamlError, OmegaConfBaseException, AttributeError, TypeError, ValueError) as error:
        raise RunError(f"{path} is not the configuration of a training: {error}") from error
    folder = path.parents[2]
    values["questions"] = [_find_moved(Path(file), folder) for file in values["questions"]]
    sources = dict.fromkeys(values, path)
    values["out"] = folder / "evaluation"
    index = folder / "index"
    if (index / "manifest.json").is_file():
        values["serve_index"], sources["serve_index"] = index, index
        del values["retriever_url"], sources["retriever_url"]  # that server has ended
    tokenizer = None
    for checkpoints in (run, folder / "checkpoints", configured_folder):
        if (newest := newest_checkpoint(checkpoints)) is not None:
            values["model"], sources["model"] = str(newest), checkpoints
            model_folder = newest / "actor" / "huggingface"
            tokenizer = model_folder if (model_folder / "tokenizer_config.json").is_file() else None
            break
    return RunDefaults(values, sources, tokenizer)


def _word(value: Any) -> str:
    """Returns a value as the word of an override."""
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _find_moved(file: Path, run: Path) -> Path:
    """Returns the path of a run's file, also if the run's folder has been moved or renamed since."""
    candidate = run / file.parent.name / file.name
    return candidate if not file.exists() and candidate.exists() else file
