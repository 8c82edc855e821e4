"""`rag-r1 stages`: trains in stages, each of which starts from the model that the previous one exported.

A stage is a recipe that `rag-r1 train` trains into a separate folder, `OUT/stage1`, `OUT/stage2`, ... All
progress is recorded in these folders, so the command can be killed at any time and run again:

    within a stage    veRL resumes from the stage's last complete checkpoint (`trainer.resume_mode: auto`)
    between stages    a finished stage has a file `finished`, which names the model that it exported; it is
                      not trained again, and the next stage starts from that model

If the command is killed before it can end its training process, that process keeps the lock on the stage's
folder. Another run of the command then fails at once, since two trainings in one folder would destroy each
other's checkpoints.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING

from rag_r1.config.recipes import Recipe
from rag_r1.inference.model_folders import newest_checkpoint
from rag_r1.io.atomic_files import write_text
from rag_r1.options.arguments.overrides import Overrides, hydra_quoted, is_override
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, argument, read_arguments
from rag_r1.options.out_folder import check_out
from rag_r1.options.problems import Problem, error
from rag_r1.options.settings_file import recorded_settings
from rag_r1.options.suggestions import did_you_mean
from rag_r1.runs.errors import RunError
from rag_r1.runs.lock import hold_lock
from rag_r1.runs.processes import run_child
from rag_r1.runs.start_checks import StartChecks
from rag_r1.training.checkpoint_steps import mend_tracker
from rag_r1.training.composition import refuse_own_keys
from rag_r1.training.config_facts import SAVE_CONTENTS, saved_contents, saves_checkpoints

if TYPE_CHECKING:
    from omegaconf import DictConfig

_DESCRIPTION = """\
Train in stages: each stage starts from the model that the previous one exported. Run again, the same command
continues where it was interrupted, within a stage or between two. key=value is a Hydra override for every
stage, stage2:key=value one for stage 2 only; {stage} in a value is replaced by the stage's number.

example:
  rag-r1 stages --out outputs/r1_searcher \\
      --recipe r1_searcher/stage1_qwen --recipe r1_searcher/stage2_qwen \\
      actor_rollout_ref.model.path=Qwen/Qwen2.5-7B \\
      data.train_files=data/stage{stage}/train.parquet data.val_files=data/stage{stage}/test.parquet \\
      rag_r1.retriever.url=http://127.0.0.1:8000 stage1:trainer.total_epochs=3
"""
MODEL_KEY = "actor_rollout_ref.model.path"
_FOLDER_KEY = "trainer.default_local_dir"
_ONE_STAGE = re.compile(r"stage(\d+):(.*)", re.DOTALL)
#: A word in braces, but not an interpolation of Hydra.
_IN_BRACES = re.compile(r"(?<!\$)\{(\w+)\}")

#: Trains, or checks, a recipe with overrides; returns the exit status.
Train = Callable[[str, Sequence[str]], int]


def run_stages(recipes: Sequence[str], out: Path, overrides: Sequence[str], train: Train) -> Path:
    """Train the stages that are not finished yet, and return the folder of the last stage's model.

    `train` is called with each stage's recipe and overrides. Raises RunError if an override is wrong, if a
    training fails or exports no model, if the record of a finished stage names none, or if another training
    is running in a stage's folder, and OSError if a stage's folder cannot be read or written.
    """
    out = out.resolve()
    check_stage_overrides(overrides, len(recipes))
    model: Path | None = None
    for number, recipe in enumerate(recipes, 1):
        folder = out / f"stage{number}"
        finished = folder / "finished"
        if finished.exists():
            model = _model_of(folder)
            print(f"stage {number}: finished before, its model is {model}")
            continue
        with lock_folder(folder):
            mend_tracker(folder / "checkpoints")
            status = train(recipe, stage_overrides(overrides, number, folder, model))
            if status:
                raise RunError(
                    f"stage {number} ({recipe}) ended with status {status}; fix the error above and run the "
                    "same command again: it continues from the last checkpoint"
                )
            model = exported_model(folder / "checkpoints")
            write_text(finished, f"{model}\n", errors="strict")
        print(f"stage {number}: finished, its model is {model}")
    assert model is not None  # there is at least one stage
    return model


def _model_of(stage: Path) -> Path:
    """Return the model of a finished stage, as `finished_model` does, but raise RunError with the remedy if
    the file `finished` does not name a model."""
    try:
        return finished_model(stage)
    except ValueError as fault:
        finished = stage / "finished"  # without it, the stage goes on from its last checkpoint
        raise RunError(f"{finished} does not name a model: remove {finished}, and run again") from fault


def finished_model(stage: Path) -> Path:
    """Return the folder of the model that a finished stage has exported, even if the stage's folder has been
    moved since then.

    Raises OSError if the stage is not finished, and ValueError if its file `finished` does not name a folder
    below `checkpoints`.
    """
    parts = Path((stage / "finished").read_text(encoding="utf-8").strip()).parts
    # Folders above the stage may have that name, too.
    start = max(index for index, part in enumerate(parts) if part == "checkpoints")
    return stage.joinpath(*parts[start:])


def check_stage_overrides(overrides: Sequence[str], stages: int) -> None:
    """Raise StartError naming every override that is not key=value, belongs to a stage that does not exist,
    or is for a key that the stage sets itself. `stages` is their number, or 0 if it is not known."""
    with StartChecks() as checks:
        for override in overrides:
            checks.run(_right_override, override, stages)


def _right_override(override: str, stages: int) -> str:
    """Return the override. Raises RunError if it is wrong, and StartError if the stage sets its key itself.
    `stages` is their number, or 0 if it is not known."""
    match = _ONE_STAGE.fullmatch(override)
    number, hydra_override = (int(match[1]), match[2]) if match else (1, override)
    if match and stages and not 1 <= number <= stages:
        raise RunError(f"{override}: there is no stage {match[1]}, only 1 to {stages}")
    if not match and re.match(r"stage\w*:", override):
        raise RunError(f"{override}: write stage1:key=value, with the number of a stage")
    if not is_override(hydra_override):
        raise RunError(f"{override} is not key=value or ~key (or stage1:key=value)")
    for name in _IN_BRACES.findall(hydra_override):
        if name != "stage" and did_you_mean(name, ["stage"], cutoff=0.8):
            raise RunError(f"{override}: {{{name}}} is not replaced: did you mean {{stage}}?")
    check_stage_keys([hydra_override], number)
    return override


def check_stage_keys(overrides: Sequence[str], number: int = 1) -> None:
    """Raise StartError with the overrides of keys that stage `number` sets itself: its checkpoint folder and,
    after the first stage, its initial model."""
    own_keys = (_FOLDER_KEY, *([MODEL_KEY] if number > 1 else []))
    hint = "--out chooses the folder, and a stage starts from the model of the one before"
    refuse_own_keys(overrides, own_keys, "rag-r1 stages", hint)


def stage_overrides(overrides: Sequence[str], number: int, folder: Path, model: Path | None) -> list[str]:
    """Return the overrides of one stage, in the order in which later ones take precedence.

    These are the user's overrides for all stages and for this one, between defaults for the folders of
    records and of Hydra, which the user may override, and the two that connect the stages and come last so
    that nothing overrides them: the stage's checkpoint folder and its initial model.
    """
    shared, specific = [], []
    for override in overrides:
        match = _ONE_STAGE.fullmatch(override)
        if match is None:
            shared.append(override)
        elif int(match[1]) == number:
            specific.append(match[2])
    model_override = [] if model is None else [f"{MODEL_KEY}={hydra_quoted(model)}"]
    return [
        f"rag_r1.trajectory_dir={hydra_quoted(folder / 'trajectories')}",
        f"hydra.run.dir={hydra_quoted(folder / 'hydra')}",
        *(override.replace("{stage}", str(number)) for override in shared + specific),
        f"{_FOLDER_KEY}={hydra_quoted(folder / 'checkpoints')}",
        *model_override,
    ]


def exported_model(checkpoints: Path) -> Path:
    """Return the Hugging Face model folder in the last checkpoint. Raises RunError if there is none."""
    checkpoint = newest_checkpoint(checkpoints)
    folder = checkpoint and checkpoint / "actor" / "huggingface"
    if folder is None or not any(folder.glob("*.safetensors")):
        raise RunError(
            f"no exported model under {checkpoints}: a stage needs trainer.save_freq above 0 and "
            f"{SAVE_CONTENTS}=[model,optimizer,extra,hf_model]"
        )
    return folder


def check_export(config: DictConfig) -> Iterator[Problem]:
    """Check that the training exports a Hugging Face model at its end, from which `rag-r1 stages` starts the
    next stage. By default veRL saves nothing, and the training would be lost."""
    if not saves_checkpoints(config):
        interval = config.trainer.get("save_freq")
        text = f"is {interval}, so no checkpoint is saved, and what is trained would be lost"
        yield error("trainer.save_freq", text, "set it above 0; the last step is saved in any case")
    if "hf_model" not in (contents := saved_contents(config)):
        remedy = f"set {SAVE_CONTENTS}=[{','.join([*contents, 'hf_model'])}]"
        yield error(SAVE_CONTENTS, "has no hf_model, from which the next step would start", remedy)


def check_stages(
    recipes: Sequence[str], out: Path, overrides: Sequence[str], check: Train, *, all_stages: bool = False
) -> None:
    """Run `check(recipe, overrides)` for every stage before the first one is trained.

    Without `all_stages`, finished stages are skipped, and nothing is checked if only one stage remains,
    because `rag-r1 train` checks that stage itself. The model of a later stage does not exist yet, so each
    stage is checked with the initial model of the first. Raises RunError naming the stages with problems.
    """
    out = Path(realpath(out))
    numbers = range(1, len(recipes) + 1)
    open_stages = [n for n in numbers if all_stages or not (out / f"stage{n}" / "finished").exists()]
    if len(open_stages) < 2 and not all_stages:
        return
    first_overrides = stage_overrides(overrides, 1, out / "stage1", None)
    initial_model = [override for override in first_overrides if override.startswith(f"{MODEL_KEY}=")][-1:]
    failed = []
    for n in open_stages:
        print(f"stage {n}: {recipes[n - 1]}", flush=True)
        if check(recipes[n - 1], [*initial_model, *stage_overrides(overrides, n, out / f"stage{n}", None)]):
            failed.append(str(n))
    if failed:
        raise RunError(f"nothing was started: correct the problems above, of stage {', '.join(failed)}")


def run_training(recipe: str, overrides: Sequence[str], *flags: str) -> int:
    """Run `rag-r1 train` in a process that ends with this one, and return its exit status."""
    command = [sys.executable, "-m", "rag_r1.cli", "train", "--leave-model", "--recipe", recipe]
    return run_child([*command, *flags, *overrides])


def run_check(recipe: str, overrides: Sequence[str]) -> int:
    """Run only the checks of `rag-r1 train`, as `run_training` does, and return their exit status."""
    return run_training(recipe, overrides, "--check-only")


def lock_folder(folder: Path) -> AbstractContextManager[None]:
    """Return a context manager that holds the folder's lock.

    The training process inherits the lock, which is therefore held as long as either process lives. Entering
    raises RunError if the lock is held already.
    """
    busy_error = RunError(
        f"a training is still running in {folder} (perhaps that of a killed command): "
        "wait for it or end it, then run the same command again"
    )
    return hold_lock(folder, busy_error, inherited=True)


class StagesArguments(Arguments):
    """Arguments of `rag-r1 stages`."""

    recipe: list[str] = argument("recipe of a stage; repeat the flag in the order of the stages", "RECIPE")
    out: Path = argument("folder of the stages", "OUT")
    check_only: bool = argument("check every stage, report all problems, and stop", default=False)
    overrides: Overrides = argument("any key of veRL or of `rag_r1:`", "key=value", default=[])


@command_main(RunError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Train the stages. Returns 0 when all of them are finished, or passed their checks."""
    args = read_arguments(
        StagesArguments, arguments, prog="rag-r1 stages", description=_DESCRIPTION, check=check_start
    )
    check_start(args)
    if args.check_only:
        print(f"all checks passed: {len(args.recipe)} stages would be trained into {args.out}")
        return 0
    with recorded_settings("rag-r1 stages", args):
        run_stages(args.recipe, args.out, args.overrides, run_training)
    return 0


def check_start(args: StagesArguments) -> None:
    """Raise StartError with all faults of the arguments. The faults of the stages are printed before."""
    with StartChecks() as checks:
        checks.run(check_out, args.out, "rag-r1 stages")
        found = [recipe for recipe in args.recipe if checks.run(Recipe.find, recipe) is not None]
        stages = len(args.recipe)
        right = [override for override in args.overrides if checks.run(_right_override, override, stages)]
        all_stages = args.check_only or args.is_partial or bool(checks.problems)

        def check_found(recipe: str, overrides: Sequence[str]) -> int:
            return run_check(recipe, overrides) if recipe in found else 0

        checks.run(check_stages, args.recipe, args.out, right, check_found, all_stages=all_stages)


if __name__ == "__main__":
    sys.exit(main())
