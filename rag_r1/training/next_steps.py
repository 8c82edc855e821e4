"""The next steps after a training, as lines to print: the newest checkpoint, and commands that use it.

The commands are complete and can be pasted into a shell: they are made from the composed configuration and
from the files in the folder of checkpoints. Each command has a separate line.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.evaluation.run_defaults import SEARCH_URL, config_file, validation_arguments
from rag_r1.inference.model_folders import ADAPTER_META, newest_checkpoint
from rag_r1.training.config_facts import adapter_rank, is_nf4

#: Names of files with trajectory records (rag_r1/agent/records.py).
_RECORDS = re.compile(r"step_(\d+)-\d+\.jsonl")
_EVALUATE = "evaluate it (with --card: does it search, or does it already know?):"


def after_training(config: Any) -> list[str]:
    """Return the lines to print after a training by reinforcement learning. `config` is the composed
    configuration (composition.py), whose paths are relative to the working directory."""
    folder = Path(config.trainer.default_local_dir).expanduser()
    checkpoint = newest_checkpoint(folder)
    if checkpoint is None:
        reason = f"trainer.save_freq is {config.trainer.save_freq}; above 0, the last step is saved"
        return [f"no checkpoint was saved in {folder}: {reason}", *_inspection(config)]
    if is_nf4(config):
        return [f"checkpoint: {checkpoint}", *_nf4_lines(config, checkpoint, folder), *_inspection(config)]
    return [
        f"checkpoint: {checkpoint}",
        _EVALUATE,
        _shell_line(["rag-r1", "eval", *_evaluation_arguments(config, checkpoint, folder)]),
        *_inspection(config),
        *_export_lines(config, checkpoint),
    ]


def after_sft(model: Path) -> list[str]:
    """Return the lines to print after a supervised fine-tuning. `model` is the chosen model's Hugging Face
    folder."""
    evaluation = EvalArguments(
        questions=[Path("QUESTIONS")], model=str(model), protocol="PROTOCOL", out=model.parent / "evaluation"
    )
    overrides = [
        f"actor_rollout_ref.model.path={model}",
        *("data.train_files=TRAIN", "data.val_files=TEST", f"rag_r1.retriever.url={SEARCH_URL}"),
    ]
    return [
        "evaluate it, with questions of yours:",
        _shell_line(["rag-r1", "eval", *evaluation.to_argv()]),
        "train it further, with reinforcement learning:",
        _shell_line(["rag-r1", "train", "--recipe", "rag_r1/ppo_mq", *overrides]),
    ]


def after_demo(out: Path, checkpoint: Path | None, base: Path | None = None) -> list[str]:
    """Return the lines to print after a demo run in the folder `out`. `checkpoint` is the newest one, None if
    there is none. `base` is the policy that was quantised, if adapters over weights in nf4 were trained."""
    lines = _reports(out / "trajectories")
    if checkpoint is None:
        return lines
    if base is not None:
        exported = "export it as one model, which `rag-r1 eval --model` takes:"
        return [*lines, f"the trained adapters: {checkpoint}", exported, _export_nf4(checkpoint, str(base))]
    corpus = str(out / "data" / "corpus.jsonl")
    actor = checkpoint / "actor"
    policy = actor if (actor / ADAPTER_META).exists() else f"a Hugging Face model: {actor / 'huggingface'}"
    return [
        *lines,
        f"the trained policy, {policy}",
        "evaluate it, with all settings of this run; with a card: does it search, or does it already know?",
        _shell_line(["rag-r1", "eval", str(out)]),
        _shell_line(["rag-r1", "eval", str(out), "--card", "--corpus", corpus, "--out", str(out / "card")]),
    ]


def _evaluation_arguments(config: Any, checkpoint: Path, folder: Path) -> list[str]:
    """Return the arguments that evaluate a checkpoint in the same way as the training's validation. The
    training's folder is enough if it contains the configuration."""
    if config_file(folder) is not None:
        return [str(folder)]
    out = folder / "evaluation"
    return EvalArguments(model=str(checkpoint), out=out, **validation_arguments(config)).to_argv()


def _nf4_lines(config: Any, checkpoint: Path, folder: Path) -> list[str]:
    """Return lines with the commands that export adapters over nf4 as one model, and that evaluate it."""
    values = validation_arguments(config)
    evaluation = EvalArguments(model=str(_export_folder(checkpoint)), out=folder / "evaluation", **values)
    return [
        "export it as one model (without --merged: the dequantised weights, and the adapters):",
        _export_nf4(checkpoint, str(config.actor_rollout_ref.model.path)),
        _EVALUATE,
        _shell_line(["rag-r1", "eval", *evaluation.to_argv()]),
    ]


def _export_nf4(checkpoint: Path, base: str) -> str:
    """Return the command that exports adapters over nf4 and their `base` as one model."""
    command = ["rag-r1", "model", "export-nf4", str(checkpoint), "--base", base, "--merged"]
    return _shell_line([*command, "--out", str(_export_folder(checkpoint))])


def _export_folder(checkpoint: Path) -> Path:
    return checkpoint.with_name(f"{checkpoint.name}_huggingface")


def _inspection(config: Any) -> list[str]:
    """Return lines with the commands that show the trajectories; none if trajectories are not recorded."""
    folder = config.rag_r1.get("trajectory_dir")
    return _reports(Path(folder).expanduser()) if folder else []


def _reports(folder: Path) -> list[str]:
    """Return lines with the commands that show the trajectories in a folder, and the report of the last
    validation of each split."""
    # `rag-r1 view` also shows the curves of the metrics if it gets the folder of the whole run.
    run = folder.parent if folder.name == "trajectories" else folder
    lines = [
        f"every trajectory in a browser, and why it failed (JSON lines: {folder}):",
        _shell_line(["rag-r1", "view", str(run)]),
    ]
    splits = {path.name: _last_step(path) for path in sorted(folder.glob("*")) if path.name != "train"}
    probes = [name for name in splits if any(name.startswith(f"{split_name}_") for split_name in splits)]
    for split, step in splits.items():
        if step is not None and split not in probes:
            command = ["rag-r1", "eval", "report", str(folder / split), "--step", str(step)]
            lines += [f"report of the last validation ({split}, step {step}):", _shell_line(command)]
    return lines + ([f"the same under probes: {', '.join(probes)}"] if probes else [])


def _last_step(split: Path) -> int | None:
    """Return the last step with records in a split's folder; None if there is none."""
    files = split.iterdir() if split.is_dir() else ()
    return max((int(match[1]) for path in files if (match := _RECORDS.match(path.name))), default=None)


def _export_lines(config: Any, checkpoint: Path) -> list[str]:
    """Return lines with the exported model, or with the command that exports it with veRL's merger."""
    actor = checkpoint / "actor"
    exported = actor / "huggingface"
    if any(exported.glob("*.safetensors")) and not adapter_rank(config):
        return [f"exported as a Hugging Face model: {exported}"]
    backend = "megatron" if config.actor_rollout_ref.actor.strategy == "megatron" else "fsdp"
    target = _export_folder(checkpoint)
    command = ["TORCH_FORCE_WEIGHTS_ONLY_LOAD=1"] if backend == "fsdp" else []  # its files are pickles
    command += ["python", "-m", "verl.model_merger", "merge", "--backend", backend]
    command += ["--local_dir", str(actor), "--target_dir", str(target)]
    suffix = ", with the adapters beside it" if adapter_rank(config) else ""
    return [f"export it as a Hugging Face model{suffix}:", _shell_line(command)]


def _shell_line(command: Sequence[str]) -> str:
    """Return a command as an indented line, quoted for the shell."""
    return f"  {shlex.join(command)}"
