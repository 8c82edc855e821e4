"""`rag-r1 demo`: runs the embedded demo, from a world and an index to a veRL training and its report.

    rag-r1 demo --recipe grpo

The command writes the corpus and the questions of an invented world, builds a BM25 index and starts the
retrieval server. It then runs `verl.trainer.main_ppo` with the recipe `demo/<name>` from the warm start in
`policy/`. At the end it prints a table and draws a picture. Nothing is downloaded. `key=value` arguments are
Hydra overrides of the recipe.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os.path import realpath
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator

from rag_r1.config.recipes import RECIPES, Recipe
from rag_r1.demo.policy import POLICIES, policy_path
from rag_r1.demo.report import make_report, markdown
from rag_r1.demo.world import demo_protocol, write_demo
from rag_r1.inference.model_folders import newest_checkpoint
from rag_r1.io.errors import DataError
from rag_r1.options.arguments.overrides import CheckedOverrides, hydra_quoted
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Above0, Arguments, argument, read_arguments
from rag_r1.options.import_path import add_working_directory
from rag_r1.options.out_folder import check_out
from rag_r1.options.settings_file import owner_of, recorded_settings
from rag_r1.protocols import Protocol
from rag_r1.runs.errors import RunError
from rag_r1.runs.lock import hold_out
from rag_r1.runs.start_checks import CHECK_ONLY, StartChecks, check_packages
from rag_r1.tools.retrieval.local_server import build_index, retrieval_process
from rag_r1.training.composition import check_overrides, compose_recipe, refuse_own_keys
from rag_r1.training.config_facts import adapter_rank
from rag_r1.training.guard.bands import BandCheck
from rag_r1.training.next_steps import after_demo
from rag_r1.training.progress import train

#: Contains a folder for the run of each recipe; relative to the working directory.
OUTPUTS = Path("outputs", "demo")
#: The folders in the folder of a run that a new run replaces.
_FOLDERS = ("checkpoints", "data", "index", "trajectories")
#: veRL saves the last step whatever the frequency is.
_LAST_STEP_ONLY = "trainer.save_freq=1000000"
_SAVED_PARTS = "actor_rollout_ref.actor.checkpoint.save_contents"
#: Overrides that save only the policy of the last step, and only as a Hugging Face model.
KEEP_POLICY = (_LAST_STEP_ONLY, f"{_SAVED_PARTS}=[hf_model]")
#: The same for a policy with adapters, in veRL's own form, since a Hugging Face model has PEFT's names.
_KEEP_ADAPTERS = (_LAST_STEP_ONLY, f"{_SAVED_PARTS}=[model]")
#: The recipe that trains adapters over NF4 weights. It saves adapters instead of a model.
_NF4_RECIPE = "grpo_nf4"


@dataclass(frozen=True)
class TrainingInputs:
    """What a training starts from."""

    protocol: Protocol
    #: Folder of the policy.
    policy: Path
    #: Writes the corpus and the questions for a seed into a folder, like `world.write_demo`.
    write: Callable[[Path, Protocol, int], Any] = write_demo


def recipe_names() -> list[str]:
    """Return the names of the demo's recipes that start from an embedded policy."""
    names = sorted(path.stem for path in (RECIPES / "demo").glob("*.yaml") if not path.stem.startswith("_"))
    return [name for name in names if (POLICIES / protocol_of(name)).is_dir()]


def protocol_of(recipe: str) -> str:
    """Return the name of the protocol of a demo recipe."""
    return yaml.safe_load((RECIPES / "demo" / f"{recipe}.yaml").read_text("utf-8"))["rag_r1"]["protocol"]


def run_demo(
    recipe: str,
    out: Path,
    seed: int,
    overrides: Sequence[str] = (),
    timeout_s: float = 3600,
    inputs: TrainingInputs | None = None,
) -> dict[str, Any]:
    """Run one demo in the folder `out`, where it replaces an earlier run; returns its results.

    Without `inputs`, the training starts from the embedded policy of the recipe's protocol, in the demo's
    world. `timeout_s` limits the training, in seconds. Raises RunError if another run has the folder, or if a
    server or the training fails, and DataError if it has recorded fewer than two validations.
    """
    if inputs is None:
        protocol = demo_protocol(protocol_of(recipe))
        inputs = TrainingInputs(protocol, policy_path(protocol.name))
    start = time.monotonic()
    with hold_out(out):
        # An earlier run is removed, its policy first, since `rag-r1 serve --demo` serves a run that has one.
        for name in _FOLDERS:
            shutil.rmtree(out / name, ignore_errors=True)
        (out / "report.png").unlink(missing_ok=True)
        print(f"1/4 inventing a world (seed {seed}) and its questions")
        inputs.write(out / "data", inputs.protocol, seed)
        print("2/4 building the BM25 index")
        build_index(out / "data" / "corpus.jsonl", out / "index", "--backend", "bm25")
        print("3/4 starting the retrieval server")
        with retrieval_process(out / "index", out / "server.log") as url:
            changes = [*_run_overrides(out, seed, inputs.policy, url), *overrides]
            print(f"4/4 training with veRL, Ray, FSDP and vLLM; log: {out / 'train.log'}")
            train(Recipe.find(f"demo/{recipe}").command(changes), out, timeout_s)
        seconds = round(time.monotonic() - start, 1)
        return make_report(out, {"recipe": recipe, "seed": seed, "seconds": seconds})


def _run_overrides(out: Path, seed: int, policy: Path, url: str) -> list[str]:
    """Return the overrides that set the files, the seed and the server of a run."""
    paths = {
        "data.train_files": out / "data" / "train.parquet",
        "data.val_files": out / "data" / "val.parquet",
        "actor_rollout_ref.model.path": policy,
        "critic.model.path": policy,
        "rag_r1.trajectory_dir": out / "trajectories",
        "trainer.default_local_dir": out / "checkpoints",
        "hydra.run.dir": out / "hydra",
    }
    values = [f"{key}={hydra_quoted(path)}" for key, path in paths.items()]
    return [*values, f"data.seed={seed}", f"rag_r1.retriever.url={url}"]


def _check_recipe(text: str) -> str:
    """Return the name of a recipe, which may be given as a path. Raises ValueError if it does not exist."""
    name = text.removeprefix("recipes/").removeprefix("demo/").removesuffix(".yaml")
    if name not in (names := recipe_names()):
        raise ValueError(f"argument --recipe: must be one of {', '.join(names)}, not {text!r}")
    return name


class DemoArguments(Arguments):
    """The arguments of `rag-r1 demo`."""

    recipe: Annotated[str, AfterValidator(_check_recipe)] = argument(
        f"recipe of the training: {', '.join(recipe_names())}", "NAME", default="grpo"
    )
    seed: int = argument("seed of the world, its questions and their order", default=0)
    out: Path | None = argument(
        "folder for everything the run writes (default: outputs/demo/RECIPE)", default=None
    )
    timeout: Above0 = argument("time limit of the training", "SECONDS", default=3600)
    check_only: bool = argument(CHECK_ONLY, default=False)
    overrides: CheckedOverrides = argument("Hydra overrides of the recipe", "key=value", default=[])


def _check_folders(out: Path) -> None:
    """Raise RunError if `out` has folders that a demo would replace, but no file that shows them to be a
    demo's."""
    foreign = [name for name in _FOLDERS if (out / name).exists()]
    if foreign and owner_of(out) is None and not (out / "train.log").is_file():
        raise RunError(
            f"--out {out} is no run of a demo, which would replace its {', '.join(foreign)}: choose another "
            "folder"
        )


def _check_start(args: DemoArguments) -> Path:
    """Check packages, folder and overrides; returns the folder of the run.

    Raises StartError with all problems.
    """
    out = Path(realpath(args.out or OUTPUTS / args.recipe))
    with StartChecks() as checks:
        packages = ["bitsandbytes"] if args.recipe == _NF4_RECIPE else []
        checks.run(check_packages, "rag-r1 demo", "verl", "vllm", "bm25s", *packages)
        checks.run(check_out, out, "rag-r1 demo")
        checks.run(_check_folders, out)
        checks.run(check_overrides, Recipe.find(f"demo/{args.recipe}"), args.overrides)
        own_keys = {override.partition("=")[0] for override in _run_overrides(out, args.seed, out, "")}
        hint = "--seed and --out choose the data and the folder"
        checks.run(refuse_own_keys, args.overrides, own_keys, "the demo", hint)
    return out


@command_main(RuntimeError, DataError)
def main(argv: Sequence[str] | None = None) -> int:
    """Run `rag-r1 demo`; returns its exit status."""
    args = read_arguments(
        DemoArguments,
        argv,
        prog="rag-r1 demo",
        description="Watch a tiny language model learn to search, on this machine, in a few minutes.",
        epilog="key=value arguments change the recipe, for example trainer.total_training_steps=5",
        check=_check_start,
    )
    add_working_directory()
    out = _check_start(args)
    if (out / "checkpoints").exists():
        print(f"the earlier run in {out} is replaced: another --out keeps it")
    if args.check_only:
        print(f"all checks passed: demo/{args.recipe} would be trained into {out}")
        return 0
    with recorded_settings("rag-r1 demo", args, out):
        changes = [*_saved_policy(args), *args.overrides]
        results = run_demo(args.recipe, out, args.seed, changes, args.timeout)
    _print_results(args, out, results)
    return 0


def _saved_policy(args: DemoArguments) -> Sequence[str]:
    """Return the overrides that save the trained policy in a form that an evaluation or export takes."""
    if args.recipe == _NF4_RECIPE:
        return (_LAST_STEP_ONLY,)
    config = compose_recipe(Recipe.find(f"demo/{args.recipe}"), args.overrides)
    return _KEEP_ADAPTERS if adapter_rank(config) else KEEP_POLICY


def _print_results(args: DemoArguments, out: Path, results: dict[str, Any]) -> None:
    """Print the table, the check of the training curves, and what can be done with the policy."""
    picture = out / "report.png"  # is not drawn without matplotlib
    picture_note = f" Picture: {picture}" if picture.exists() else ""
    print(f"\n{markdown(results)}\n\n{results['seconds']:.0f} s in total.{picture_note}")
    # The bands hold for the unchanged recipe only.
    recipe = Recipe.find(f"demo/{args.recipe}")
    if not args.overrides and (summary := BandCheck.summary_of_run(recipe, out / "metrics.jsonl")):
        print(summary)
    model = newest_checkpoint(out / "checkpoints")
    base = policy_path(protocol_of(args.recipe)) if args.recipe == _NF4_RECIPE else None
    print("\n".join(["", *after_demo(out, model, base)]))


if __name__ == "__main__":
    sys.exit(main())
