"""`rag-r1 train`: compose a recipe, run the preflight, then hand over to veRL's own trainer.

There is no trainer here. The recipe and the `key=value` overrides are Hydra's and go to
`python -m verl.trainer.main_ppo` as they are; this command only makes sure first that they can work.

A recipe of your own may stand anywhere and name the shipped fragments in its defaults list
(`- /rag_r1_defaults`, `- /platform/cpu`): the shipped folder is on Hydra's search path too.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RECIPES = Path(__file__).resolve().parents[1] / "recipes"

_DESCRIPTION = """\
Train with a recipe. Checks first what can be known without a GPU (configuration, model, data, retrieval
server), reports every problem at once, and then runs veRL: python -m verl.trainer.main_ppo with the same
recipe and overrides.

example:
  rag-r1 train --recipe recipes/rag_r1/ppo_mq \\
      actor_rollout_ref.model.path=/models/qwen \\
      data.train_files=/data/train.parquet data.val_files=/data/test.parquet \\
      rag_r1.retriever.url=http://127.0.0.1:8000 trainer.total_training_steps=10
"""


class RecipeError(ValueError):
    """A recipe that cannot be found or composed; the message names the recipe or the key."""


@dataclass(frozen=True)
class Recipe:
    """Where Hydra finds a recipe: the folder that it searches, and the name in it."""

    folder: Path
    name: str

    @classmethod
    def find(cls, given: str) -> Recipe:
        """From a path with or without `.yaml`, seen from the working directory or from the project's root."""
        for base in (Path.cwd(), RECIPES.parent, RECIPES):
            path = (base / given).resolve()
            path = path if path.suffix == ".yaml" else path.with_name(path.name + ".yaml")
            if path.is_file():
                folder = next(
                    (p for p in path.parents if (p / "rag_r1_defaults.yaml").is_file()), path.parent
                )
                return cls(folder, path.relative_to(folder).with_suffix("").as_posix())
        known = ", ".join(sorted(p.relative_to(RECIPES.parent).with_suffix("").as_posix() for p in shipped()))
        raise RecipeError(f"there is no recipe {given!r}; use the path of a YAML file, e.g. one of {known}")

    @property
    def overrides(self) -> list[str]:
        """A recipe from elsewhere still finds the shipped fragments and veRL's own."""
        if self.folder == RECIPES:
            return []
        return [f'hydra.searchpath=["pkg://verl.trainer.config","file://{RECIPES}"]']

    def command(self, overrides: Sequence[str]) -> list[str]:
        """veRL's own command for this recipe."""
        main = [sys.executable, "-m", "verl.trainer.main_ppo"]
        return [
            *main,
            f"--config-path={self.folder}",
            f"--config-name={self.name}",
            *self.overrides,
            *overrides,
        ]


def shipped() -> list[Path]:
    """The recipes of this project: the files with veRL's trainer in their defaults list."""
    return [path for path in RECIPES.rglob("*.yaml") if "- /ppo_trainer" in path.read_text(encoding="utf-8")]


def compose_recipe(recipe: Recipe, overrides: Sequence[str]):
    """The whole configuration, as veRL will see it. Raises RecipeError naming the key or file."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        with initialize_config_dir(str(recipe.folder), version_base=None):
            return compose(recipe.name, overrides=[*recipe.overrides, *overrides])
    except (HydraException, OmegaConfBaseException) as error:
        raise RecipeError(f"{recipe.name}: {error}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if the preflight found an error; otherwise veRL takes this process over."""
    parser = argparse.ArgumentParser(
        prog="rag-r1 train", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--recipe", required=True, help="a recipe: path of a YAML file, e.g. recipes/rag_r1/ppo_mq"
    )
    parser.add_argument("--check-only", action="store_true", help="run the checks and stop")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="any key of veRL or of `rag_r1:`")
    options = parser.parse_intermixed_args(arguments)
    try:
        recipe = Recipe.find(options.recipe)
        config = compose_recipe(recipe, options.overrides)
    except RecipeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1

    if config.trainer.device == "cpu":
        # veRL goes by nvidia-smi: on a machine with GPUs it would make cuda of this.
        os.environ["VERL_PLATFORM"] = "cpu"
    from rag_r1.preflight import preflight

    report = preflight(config)
    for note in report.notes:
        print(f"checked: {note}")
    for problem in report.problems:
        print(problem, file=sys.stderr)
    if report.errors:
        print(f"{len(report.errors)} error(s): the run was not started", file=sys.stderr)
        return 1
    print("preflight: all is well")
    if options.check_only:
        return 0
    sys.stdout.flush()
    command = recipe.command(options.overrides)
    os.execv(command[0], command)


if __name__ == "__main__":
    sys.exit(main())
