"""What the guides name exists: files, headings, Hydra keys; and their arithmetic is right."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from tests.docs.fences import blocks
from tests.recipes.composed_recipes import compose_quickly

pytestmark = pytest.mark.slow  # each guide's keys are composed

ROOT = Path(__file__).parents[2]
GUIDES = [*sorted((ROOT / "docs" / "guides").glob("*.md")), ROOT / "recipes" / "checkpoints" / "README.md"]
SCRIPTS = sorted((ROOT / "docs" / "guides").glob("*.sh"))
NAMES = [path.relative_to(ROOT).as_posix() for path in GUIDES]
#: Where a config's keys begin; other words with dots in them are file names.
ROOTS = ("actor_rollout_ref", "algorithm", "checkpoint", "critic", "data", "rag_r1", "ray_kwargs", "trainer")
#: Guides of other recipes than reinforcement learning's.
RECIPES = {"checkpoints/README.md": "checkpoints/evaluate", "guides/sft.md": "rag_r1/sft/qwen_7b"}
KEY = re.compile(rf"(?<![\w/.+])(?<!-m )(\+?(?:{'|'.join(ROOTS)})(?:\.\w+)+)(?:=(\[[^\]]*\]|[^\s`'\"]+))?")


@cache
def config(recipe: str, *overrides: str) -> DictConfig:
    return compose_quickly(recipe, overrides)


def keys(text: str) -> dict[str, str | None]:
    """The Hydra keys that a text names, with the value that it gives one (of several the last). Names of
    modules are none."""
    values: dict[str, str | None] = {}
    for key, value in KEY.findall(text):
        module = ROOT / key.lstrip("+").replace(".", "/")
        if (
            not key.endswith((".py", ".sh", ".md", ".yaml", ".json", ".jsonl", ".pt"))
            and not module.with_suffix(".py").is_file()
            and not module.is_dir()
        ):
            values[key] = value.rstrip(".,;:") or values.get(key)
    return values


def test_the_guides_list_each_other():
    listed = re.findall(r"\]\((\w+\.md)\)", (ROOT / "docs" / "guides" / "README.md").read_text())
    assert sorted([*listed, "README.md"]) == sorted(
        path.name for path in GUIDES if path.parent.name == "guides"
    )


@pytest.mark.parametrize("guide", GUIDES, ids=NAMES)
def test_every_file_that_is_linked_is_there_and_so_is_its_heading(guide: Path):
    for target, heading in re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]*))?\)", guide.read_text("utf-8")):
        path = (guide.parent / target).resolve() if target else guide
        assert path.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
            assert heading in [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]


@pytest.mark.parametrize("guide", GUIDES, ids=NAMES)
def test_every_hydra_key_exists_with_the_value_that_is_shown(guide: Path):
    recipe = RECIPES.get(f"{guide.parent.name}/{guide.name}", "rag_r1/ppo_mq")
    text = guide.read_text("utf-8")
    if guide.name == "coming_from.md":  # the other columns are keys of other projects
        text = "\n".join(
            line.rstrip("| ").rpartition("|")[2] for line in text.splitlines() if line[:1] == "|"
        )
    values = keys(text)
    literal = {key: value for key, value in values.items() if value and "..." not in value}
    composed = config(f"recipes/{recipe}", *(f"{key}={value}" for key, value in literal.items()))
    for key in values:
        parent, _, name = key.removeprefix("+").rpartition(".")
        assert name in list(OmegaConf.select(composed, parent)), key  # also one that must be given (???)


def test_the_keys_of_a_text_are_found():
    text = (
        "Set `trainer.nnodes=4`, +ray_kwargs.ray_init.address=auto; see data.pt and `critic.use_dynamic_bsz`."
    )
    assert keys(text) == {
        "trainer.nnodes": "4",
        "+ray_kwargs.ray_init.address": "auto",
        "critic.use_dynamic_bsz": None,
    }


@pytest.mark.parametrize("name", ["several_nodes", "resuming", "logging", "exporting"])
def test_every_guide_of_a_training_names_keys_and_commands(name: str):
    page = f"docs/guides/{name}.md"
    assert keys((ROOT / page).read_text("utf-8"))
    assert page in {block.page for block in blocks("bash")}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_the_scripts_of_the_guides_are_right_bash(script: Path):
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", "-x", str(script)], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_ray_node_tells_what_it_can_and_refuses_what_it_cannot():
    script = ["bash", "docs/guides/ray_node.sh"]
    help = subprocess.run([*script, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert help.returncode == 0 and all(word in help.stdout for word in ("head", "worker", "wait", "stop"))
    for wrong in ([], ["worker"], ["wait"], ["other"]):
        done = subprocess.run([*script, *wrong], cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and "error:" in done.stderr
