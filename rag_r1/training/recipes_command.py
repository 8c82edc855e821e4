"""`rag-r1 recipes`: lists, shows and copies the shipped recipes.

A recipe contains only the settings that its method changes, and names the files that it builds on relative to
the root folder of the recipes. `rag-r1 train` adds that folder to Hydra's search path, so a copy of a recipe
can be trained from anywhere.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic_settings import CliPositionalArg

from rag_r1.config.recipes import KINDS, RECIPES, Recipe, find_file, kind_of, shipped_names, text_of
from rag_r1.io.atomic_files import write_text
from rag_r1.options.arguments.overrides import CheckedOverrides
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, argument, read_arguments
from rag_r1.options.out_folder import check_out
from rag_r1.options.subcommands import run
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import CHECK_ONLY, StartChecks
from rag_r1.system.installation import version

if TYPE_CHECKING:
    from omegaconf import DictConfig

_MODULE = "rag_r1.training.recipes_command"
#: Subcommand -> its function, and its help.
COMMANDS: dict[str, tuple[str, str]] = {
    "list": (f"{_MODULE}:list_recipes", "list the shipped recipes, by the command that takes them"),
    "show": (f"{_MODULE}:show_recipe", "show the file of a recipe, or with --composed all that it builds on"),
    "table": (f"{_MODULE}:print_recipe_table", "print dtype, adapters, learning rates and calculated memory"),
    "copy": (f"{_MODULE}:copy_recipe", "copy a recipe into a file of your own, ready to be changed"),
    "path": (f"{_MODULE}:print_paths", "print the folder of the recipes, or the files of some"),
}
_DESCRIPTION = "The recipes that come with this project. Without a command: list them."
_SENTENCE = re.compile(r"(?<=[.!?])\s")


@command_main(RunError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand, by default `list`. Returns its exit status, or 2 if the subcommand does not
    exist."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    return run("rag-r1 recipes", _DESCRIPTION, COMMANDS, arguments or ["list"])


class ListArguments(Arguments):
    """`rag-r1 recipes list` has no arguments."""


def list_recipes(arguments: Sequence[str]) -> int:
    """Print the name and the first sentence of each recipe, below the command that takes it."""
    read_arguments(ListArguments, arguments, prog="rag-r1 recipes list", description="List the recipes.")
    width = max(map(len, shipped_names()), default=0)
    for kind, command in KINDS.items():
        print(f"{command} --recipe NAME")
        for name in shipped_names(kind):
            print(f"  {name:{width}}  {_first_sentence(RECIPES / f'{name}.yaml')}")
        print()
    print("rag-r1 recipes show NAME prints one; rag-r1 recipes copy NAME FILE makes it yours.")
    return 0


def _first_sentence(path: Path) -> str:
    """Return the first sentence of the comment at the top of a recipe."""
    lines = takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
    comment = [line.removeprefix("#").strip() for line in lines if not line.startswith("# @package")]
    return _SENTENCE.split(" ".join(comment), maxsplit=1)[0]


class ShowArguments(Arguments):
    """Arguments of `rag-r1 recipes show`."""

    name: CliPositionalArg[str] = argument("name of a recipe, or of another file of the recipes", "NAME")
    composed: bool = argument(
        "show the whole configuration, with everything that the recipe builds on", default=False
    )
    overrides: CheckedOverrides = argument("changes, with --composed", "key=value", default=[])


def show_recipe(arguments: Sequence[str]) -> int:
    """Print a recipe. Raises StartError if no recipe has the name, if the recipe cannot be composed, or if
    there are overrides without --composed."""
    args = read_arguments(
        ShowArguments, arguments, prog="rag-r1 recipes show", description="Show a recipe.", check=_check_show
    )
    print(_check_show(args), end="")
    return 0


def _check_show(args: ShowArguments) -> str:
    """Return the text of the recipe. Raises StartError with all faults of the arguments."""
    with StartChecks() as checks:
        if args.overrides and not args.composed:
            checks.add(RunError(f"{args.overrides[0]}: a recipe is shown with changes by --composed: add it"))
        text = checks.run(_recipe_text, args.name, args.overrides if args.composed else None)
    assert text is not None  # StartChecks has raised otherwise
    return text


def _recipe_text(name: str, overrides: Sequence[str] | None) -> str:
    """Return a recipe's file or, with overrides, all that the recipe builds on. Raises RunError."""
    if overrides is None:
        return text_of(find_file(name, ".yaml"))
    recipe = Recipe.find(name)
    if kind_of(recipe.path) in ("retriever", "iterate"):
        raise RunError(f"{name} builds on nothing: leave out --composed")
    from omegaconf import OmegaConf

    from rag_r1.training.composition import check_composition

    return OmegaConf.to_yaml(check_composition(recipe, overrides))


class TableArguments(Arguments):
    """Arguments of `rag-r1 recipes table`."""

    recipe: str | None = argument("a recipe; without it, all shipped ones", default=None)
    size: str | None = argument(
        "size of the model (of Qwen2.5, or a name), e.g. 32B, or several: 7B,14B (default: the recipe's); "
        "for a single size the table of `rag-r1 train --check-only` follows",
        default=None,
    )
    overrides: CheckedOverrides = argument("changes, with --recipe", "key=value", default=[])


_TABLE_EPILOG = """\
example, for two GPUs:
  rag-r1 recipes table --recipe agentic_rag/grpo_lora --size 32B trainer.n_gpus_per_node=2
"""


def print_recipe_table(arguments: Sequence[str]) -> int:
    """Print the tables of the recipes' READMEs, or the rows of one recipe with overrides. Raises StartError
    naming all arguments that are wrong or do not go together, or if a recipe cannot be composed."""
    description = "Compose recipes, and print their dtype, adapters, learning rates and calculated memory."
    prog = "rag-r1 recipes table"
    args = read_arguments(
        TableArguments,
        arguments,
        prog=prog,
        description=description,
        epilog=_TABLE_EPILOG,
        check=_check_table,
    )
    from rag_r1.training.composition import compose_recipe
    from rag_r1.training.preflight.memory.table import memory_table
    from rag_r1.training.recipe_table import memory_for, recipe_row, recipe_table, recipe_tables, size_for

    checked = _check_table(args)
    if checked is None:
        for folder, text in recipe_tables(lambda name, changes: compose_recipe(Recipe.find(name), changes)):
            print(f"## {folder or 'demo'}\n\n{text}\n", flush=True)
        return 0
    recipe, config = checked
    sizes = (args.size or size_for(recipe.name)).split(",")
    print(recipe_table([recipe_row(recipe.name, config, size) for size in sizes]))
    if len(sizes) == 1:
        print(f"\n{memory_table(memory_for(recipe.name, config, sizes[0]))}")
    return 0


def _check_table(args: TableArguments) -> tuple[Recipe, DictConfig] | None:
    """Return the recipe and its configuration; None without --recipe. Raises StartError."""
    with StartChecks() as checks:
        if args.size is not None:
            checks.run(_check_sizes, args.size)
        if args.recipe is None:
            if args.overrides or args.size:
                checks.add(RunError("changes and --size are for one recipe: name it with --recipe"))
            return None
        checked = checks.run(_configuration, args.recipe, args.overrides)
    return checked


def _check_sizes(sizes: str) -> None:
    """Raise RunError if a size is not known."""
    from rag_r1.training.preflight.memory.shape import SHAPES

    if unknown := [size or "''" for size in sizes.split(",") if size not in SHAPES]:
        raise RunError(f"--size {','.join(unknown)}: the sizes that are known are {', '.join(SHAPES)}")


def _configuration(name: str, overrides: Sequence[str]) -> tuple[Recipe, DictConfig]:
    """Return a recipe and its configuration. Raises RunError if there is no such recipe for a training, or an
    override is wrong."""
    from rag_r1.training.composition import check_overrides, check_training, compose_valid

    recipe = Recipe.find(name)
    if kind_of(recipe.path) != "sft":
        check_training(recipe, compose_valid(recipe, overrides)[0])
    return recipe, check_overrides(recipe, overrides)  # the table is calculated from their values


class CopyArguments(Arguments):
    """Arguments of `rag-r1 recipes copy`."""

    name: CliPositionalArg[str] = argument("name of a recipe", "NAME")
    to: CliPositionalArg[Path] = argument("a new file, or a folder", "FILE")
    check_only: bool = argument(CHECK_ONLY, default=False)


def copy_recipe(arguments: Sequence[str]) -> int:
    """Copy a recipe. Raises RunError if no recipe has the name, or if the copy would replace a file."""
    description = "Copy a recipe into a file of your own, which can be changed and used from any folder."
    args = read_arguments(
        CopyArguments, arguments, prog="rag-r1 recipes copy", description=description, check=_check_copy
    )
    source, target = _check_copy(args)
    if args.check_only:
        print(f"all checks passed: {_recipe_name(source)} would be copied to {target}")
        return 0
    header, _, body = text_of(source).partition("\n")
    origin = f"# Copied from the recipe {_recipe_name(source)} of rag-r1 {version()}."
    lines = [header, origin, body] if header.startswith("# @package") else [origin, header, body]
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, "\n".join(lines))
    print(target)
    if kind := kind_of(source):
        print(f"use it with: {KINDS[kind]} --recipe {target}", file=sys.stderr)
    return 0


def _check_copy(args: CopyArguments) -> tuple[Path, Path]:
    """Return the files of the recipe and of the copy. Raises StartError with all faults of the arguments."""
    with StartChecks() as checks:
        source = checks.run(_recipe_file, args.name)
        target = checks.run(_new_file, args.to, args.name)
    assert source is not None and target is not None  # StartChecks has raised otherwise
    return source, target


def _recipe_file(name: str, *, or_beside: bool = False) -> Path:
    """Return the file of a recipe or, with `or_beside`, also another file beside the shipped recipes. Raises
    RunError if there is none, or if it is another file."""
    path = find_file(name, ".yaml")
    if path.suffix != ".yaml" and not (or_beside and path.is_relative_to(RECIPES)):
        raise RunError(f"{name} is not a recipe but the file {path}: name one of `rag-r1 recipes`")
    return path


def _new_file(to: Path, name: str) -> Path:
    """Return the file of the copy. Raises RunError if it exists already, and ValueError if it
    cannot be created."""
    target = to / Path(name).name if to.is_dir() else to
    target = target if target.suffix == ".yaml" else Path(f"{target}.yaml")
    if target.exists():
        raise RunError(f"{target} exists already: give another name")
    check_out(target.parent, flag="the folder")
    return target


def _recipe_name(path: Path) -> str:
    """Return the name by which commands take a recipe: that of a shipped one, or the path of a user's
    file."""
    is_shipped = path.is_relative_to(RECIPES)
    return (path.relative_to(RECIPES) if is_shipped else path).with_suffix("").as_posix()


class PathArguments(Arguments):
    """Arguments of `rag-r1 recipes path`."""

    names: CliPositionalArg[list[str]] = argument(
        "recipes or other files, e.g. r1_searcher/run.sh", "NAME", default=[]
    )


def print_paths(arguments: Sequence[str]) -> int:
    """Print the paths of the named files, or of the folder of all recipes. Raises StartError with all names
    that are not files of the recipes."""
    description = "Print where the recipes are, or some of them."
    args = read_arguments(
        PathArguments, arguments, prog="rag-r1 recipes path", description=description, check=_check_paths
    )
    print(*(_check_paths(args) or [RECIPES]), sep="\n")
    return 0


def _check_paths(args: PathArguments) -> list[Path]:
    """Return the paths of the named files. Raises StartError."""
    with StartChecks() as checks:
        paths = [checks.run(_recipe_file, name, or_beside=True) for name in args.names]
    return [path for path in paths if path is not None]


if __name__ == "__main__":
    sys.exit(main())
