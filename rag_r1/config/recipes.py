"""Finds and reads recipes, both the shipped ones and the user's.

The shipped recipes are in `recipes/` beside the packages in the repository, and inside the package `rag_r1`
in a wheel. Only `recipes_folder` distinguishes the two cases.

A recipe is named either by its path in that folder, such as `rag_r1/grpo` (`recipes/` before it and `.yaml`
after it are optional), or by the path of any YAML file. To compose a recipe, in this process or by a command
of veRL, Hydra gets the overrides of `Recipe.hydra_overrides`, which add veRL's configuration and the shipped
recipes to its search path. So a recipe need not set the search path, which Hydra accepts only in the
outermost file, and any recipe can be built on another:

    defaults: [rag_r1/grpo, _self_]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rag_r1.io.bounded_yaml import YamlError, YamlLimitError, read_yaml
from rag_r1.options.suggestions import did_you_mean
from rag_r1.runs.errors import RunError

#: The file by which the folder of the shipped recipes is recognised.
_DEFAULTS = "rag_r1_defaults.yaml"
#: The beginning of an override of Hydra's search path.
_SEARCHPATH = "hydra.searchpath="
#: veRL's configuration, as an entry of the search path.
_VERL = "pkg://verl.trainer.config"
#: Maps each kind of recipe to the command that takes it.
KINDS = {
    "train": "rag-r1 train",
    "sft": "rag-r1 sft",
    "retriever": "rag-r1 retriever train",
    "iterate": "rag-r1 iterate",
}
#: Maps each configuration of veRL on which a recipe is built to the recipe's kind.
_VERL_ROOTS = {"/ppo_trainer": "train", "/sft_trainer_engine": "sft"}
#: Keys by which a recipe for `rag-r1 iterate` is recognised.
_ITERATE_KEYS = {"agent", "server", "evaluation"}


def recipes_folder() -> Path:
    """Return the folder of the shipped recipes: inside the package in a wheel, beside it in the
    repository."""
    package = Path(__file__).resolve().parents[1]
    bundled = package / "recipes"
    return bundled if (bundled / _DEFAULTS).is_file() else package.parent / "recipes"


RECIPES = recipes_folder()


#: The former name of the error for a recipe that cannot be found or composed; kept for one release.
RecipeError = RunError


@dataclass(frozen=True)
class Recipe:
    """A recipe as Hydra finds it: the folder that Hydra searches first, and the recipe's name in it."""

    folder: Path
    name: str

    @classmethod
    def find(cls, name: str | Path) -> Recipe:
        """Find a recipe by a name or a path, as `find_file` does. Raises RunError if there is none, or if
        the file is not a recipe, or would crash Hydra's reader or fill the memory. A file that is not YAML
        passes: the error of Hydra, when it composes the recipe, names the line."""
        path = find_file(name, ".yaml")
        if path.suffix != ".yaml":
            raise RunError(f"{path} is not a recipe: the name of a recipe's file ends in .yaml")
        # Called only for their checks: both raise RunError for a file that Hydra must not read.
        text_of(path)
        _content(path)
        folder = next((p for p in path.parents if (p / _DEFAULTS).is_file()), path.parent)
        return cls(folder, path.relative_to(folder).with_suffix("").as_posix())

    @property
    def path(self) -> Path:
        """The recipe's file."""
        return self.folder / f"{self.name}.yaml"

    def hydra_overrides(self, overrides: Sequence[str]) -> list[str]:
        """Return the overrides for Hydra: the search path, and then `overrides`. The search path begins with
        the entries of `hydra.searchpath` in an override or in the recipe. Raises RunError if these are not a
        list, and Hydra's OverrideParseException if such an override cannot be parsed."""
        shipped = [_VERL, f"file://{RECIPES}"]
        extra = [entry for entry in self._searchpath(overrides) if entry not in shipped]
        entries = ",".join('"' + entry.replace('"', '\\"') + '"' for entry in (*extra, *shipped))
        remaining = [override for override in overrides if not override.startswith(_SEARCHPATH)]
        return [f"{_SEARCHPATH}[{entries}]", *remaining]

    def overrides_to_compose(self, overrides: Sequence[str]) -> list[str]:
        """Return `hydra_overrides` for a process that only composes.

        They name the folder of veRL's configuration instead of its package. Hydra would import the package,
        and with it all of veRL, which takes half a minute on a busy machine.
        """
        searchpath, *remaining = self.hydra_overrides(overrides)
        spec = find_spec("verl")
        for location in (spec.submodule_search_locations or ()) if spec else ():
            searchpath = searchpath.replace(_VERL, f"file://{location}/trainer/config")
        return [searchpath, *remaining]

    def command_arguments(self, overrides: Sequence[str]) -> list[str]:
        """Return the arguments with which a command of veRL runs this recipe."""
        recipe = (f"--config-path={self.folder}", f"--config-name={self.name}")
        return [*recipe, *self.hydra_overrides(overrides)]

    def command(self, overrides: Sequence[str]) -> list[str]:
        """Return the command of veRL's trainer for reinforcement learning with this recipe."""
        return [sys.executable, "-m", "verl.trainer.main_ppo", *self.command_arguments(overrides)]

    def _searchpath(self, overrides: Sequence[str]) -> list[str]:
        """Return the entries of `hydra.searchpath` in an override or else in the recipe. Raises RunError if
        the value is not a list."""
        # Of several overrides the last one counts, as with any other key of Hydra.
        override = next((item for item in reversed(overrides) if item.startswith(_SEARCHPATH)), None)
        if override is not None:
            from hydra.core.override_parser.overrides_parser import OverridesParser

            [parsed] = OverridesParser.create().parse_overrides([override])
            value: Any = parsed.value()
        else:
            block = _content(self.path).get("hydra") or {}
            value = block.get("searchpath") if isinstance(block, dict) else None
        if value is not None and not isinstance(value, list):
            raise RunError(f"{self.name}: hydra.searchpath must be a list of folders, not {value!r}")
        return [str(entry) for entry in value or ()]


def find_file(name: str | Path, suffix: str = "") -> Path:
    """Find a file relative to the working directory, or else a shipped one by its path in the folder of the
    recipes (`recipes/` before it is optional).

    `suffix` is an ending that `name` may lack. Raises RunError if there is no such file.
    """
    candidates = (f"{name}{suffix}", name) if suffix and Path(name).suffix != suffix else (name,)
    folders = (Path.cwd(), RECIPES.parent, RECIPES)
    for path in (folder / candidate for folder in folders for candidate in candidates):
        try:
            if path.is_file():
                return path.resolve()
        except OSError as error:  # a name that is too long, a folder that may not be entered
            raise RunError(f"{path} cannot be read: {error.strerror}") from None
    if not (RECIPES / _DEFAULTS).is_file():
        raise RunError(f"this installation has no recipes ({RECIPES} is missing): install rag-r1 again")
    raise RunError(_unknown_recipe(str(name)))


def text_of(path: Path) -> str:
    """Return the text of a recipe's file. Raises RunError if the file cannot be read or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RunError(f"{path} is not a recipe: it is not text in UTF-8") from error


def _unknown_recipe(recipe: str) -> str:
    """Return the message about a recipe that does not exist."""
    name = recipe.removeprefix("recipes/").removesuffix(".yaml")
    hint = did_you_mean(name, shipped_names(), cutoff=0.5)
    advice = "`rag-r1 recipes` lists the shipped ones, and a YAML file of your own will do"
    return f"there is no recipe {recipe!r}; {f'{hint} ' if hint else ''}{advice}"


def shipped_names(*kinds: str) -> list[str]:
    """Return the sorted names of the shipped recipes of these kinds (keys of KINDS), by default of all."""
    paths = [path for path in RECIPES.rglob("*.yaml") if kind_of(path) in (kinds or KINDS)]
    return sorted(path.relative_to(RECIPES).with_suffix("").as_posix() for path in paths)


def kind_of(path: Path) -> str | None:
    """Return the kind of the recipe in a file, a key of KINDS; None for a fragment that recipes share.
    Raises RunError if the file is not a recipe."""
    if path.name.startswith("_"):
        return None
    if path.stem.startswith("retriever_"):
        return "retriever"
    if _content(path).keys() >= _ITERATE_KEYS:
        return "iterate"
    return next((_VERL_ROOTS[entry] for entry in _built_on(path) if entry in _VERL_ROOTS), None)


def fault_of_kind(path: Path, kind: str) -> str | None:
    """Return the fault of a recipe of another kind than `kind`, with the command that takes it; None
    if it is of this kind or of none. Raises RunError if the file is not a recipe."""
    command = KINDS.get(kind_of(path) or "")
    if command in (None, KINDS[kind]):
        return None
    return f"{path} is not a recipe for `{KINDS[kind]}`: take `{command}`"


def _built_on(path: Path) -> list[str]:
    """Return the absolute names in a file's defaults list, each followed by the names that it is built
    on."""
    names = []
    defaults = _content(path).get("defaults")
    for entry in defaults if isinstance(defaults, list) else ():  # Hydra refuses any other value
        if isinstance(entry, str) and entry.startswith("/"):
            shipped = RECIPES / f"{entry[1:]}.yaml"
            names += [entry, *(_built_on(shipped) if shipped.is_file() else ())]
    return names


def _content(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    It is empty if the file cannot be parsed, since Hydra gives a better message about such a file when it
    composes the recipe. Raises RunError if the file holds a list or a text, and for a file on which Hydra's
    reader would end the process or fill the memory.
    """
    try:
        status = path.stat()
        content = _read_once(path.resolve(), status.st_mtime_ns, status.st_size)
    except YamlLimitError as error:
        raise RunError(f"{path}: {error}") from None
    except (OSError, YamlError):
        return {}
    if not isinstance(content, dict | None):
        raise RunError(f"{path} is not a recipe: it must have keys, `defaults:` first")
    return content or {}


@lru_cache(maxsize=256)
def _read_once(path: Path, mtime_ns: int, size: int) -> Any:
    """Return the value in a YAML file, which is read again only if its time or size has changed, because
    many recipes are built on the same files. Callers share the value and must not change it."""
    return read_yaml(path)
