"""What the guides name exists: files, modules, flags, Hydra keys; and their arithmetic is right."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from rag_r1.training.preflight.memory import CONTEXTS, SHAPES, training_bytes
from tests.recipes.composed_recipes import compose_quickly

pytestmark = pytest.mark.slow  # each guide's keys are composed, and each command is asked for its help

ROOT = Path(__file__).parents[2]
GUIDES = [*sorted((ROOT / "docs" / "guides").glob("*.md")), ROOT / "recipes" / "checkpoints" / "README.md"]
SCRIPTS = sorted((ROOT / "docs" / "guides").glob("*.sh"))
NAMES = [path.relative_to(ROOT).as_posix() for path in GUIDES]
#: Where a config's keys begin; other words with dots in them are file names.
ROOTS = ("actor_rollout_ref", "algorithm", "checkpoint", "critic", "data", "rag_r1", "ray_kwargs", "trainer")
#: Guides of other recipes than reinforcement learning's.
RECIPES = {"checkpoints/README.md": "checkpoints/evaluate", "guides/sft.md": "rag_r1/sft/qwen_7b"}
KEY = re.compile(rf"(?<![\w/.+])(?<!-m )(\+?(?:{'|'.join(ROOTS)})(?:\.\w+)+)(?:=(\[[^\]]*\]|[^\s`'\"]+))?")
DOORS = {"train_ppo.sh": "ppo_sq", "train_ppo_mq.sh": "ppo_mq", "train_grpo.sh": "grpo"}


def commands(text: str) -> list[list[str]]:
    """The command lines of the blocks (fenced, or indented by four): words, without what a shell adds."""
    fenced = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    indented = re.findall(r"(?:^ {4}.*\n?)+", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    lines = "\n".join([*fenced, *indented]).replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [[word for word in line if word != "&"] for line in words if line]


def program(command: list[str]) -> list[str]:
    """A command from its program on, without the variables set before it."""
    while command and re.fullmatch(r"[A-Z_]+=.*", command[0]):
        command = command[1:]
    return command


def is_module(name: str) -> bool:
    """Can ``python -m`` run it? Looked up in the files: to import veRL takes long."""
    package, *rest = name.split(".")
    spec = importlib.util.find_spec(package)
    places = [Path(place).joinpath(*rest) for place in spec.submodule_search_locations or []] if spec else []
    return any((place / "__main__.py").is_file() or place.with_suffix(".py").is_file() for place in places)


@cache
def config(recipe: str, *overrides: str) -> DictConfig:
    return compose_quickly(recipe, overrides)


@cache
def help_of(*words: str) -> subprocess.CompletedProcess[str]:
    """What a Python command shows about itself; many guides name the same one."""
    command = [sys.executable, *words, "--help"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


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
def test_every_command_names_a_script_or_a_module_that_exists(guide: Path):
    for words in map(program, commands(guide.read_text("utf-8"))):
        if words[:2] == ["python", "-m"]:
            assert is_module(words[2]), words[2]
        elif words and words[0] in ("python", "bash", "sbatch"):
            assert (ROOT / words[1]).is_file(), words[1]
        if words and words[0] == "sbatch":
            assert (ROOT / words[2]).is_file(), words[2]


@pytest.mark.parametrize("guide", GUIDES, ids=NAMES)
def test_every_flag_of_a_python_command_is_one_of_its_own(guide: Path):
    for words in map(program, commands(guide.read_text("utf-8"))):
        if not words or words[0] != "python":
            continue
        command = words[1:3] if words[1] == "-m" else words[1:2]
        # A subcommand has a help of its own.
        steps = words[3:4] if words[1] == "-m" and not words[3].startswith("-") else []
        help = help_of(*command, *steps)
        assert help.returncode == 0, help.stderr
        for flag in (word for word in words if word.startswith("--")):
            assert re.search(rf"{flag}\b", help.stdout), f"{' '.join(command)} has no {flag}"


@pytest.mark.parametrize("guide", GUIDES, ids=NAMES)
def test_every_index_that_is_built_from_a_corpus_has_a_back_end(guide: Path):
    for words in map(program, commands(guide.read_text("utf-8"))):
        build = words[1:2] == ["retrieval_server/build_index.py"] and words[2] != "import"
        if build and "--corpus" in words:
            assert "--backend" in words, "build_index.py refuses to choose one itself"


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


@pytest.mark.parametrize("guide", GUIDES, ids=NAMES)
def test_every_training_that_is_shown_composes(guide: Path, tmp_path: Path):
    text = guide.read_text("utf-8")
    for name, recipe in re.findall(r"`(\w+\.yaml)`:\n\n```yaml\n(.*?)```", text, re.DOTALL):
        (tmp_path / name).write_text(recipe)  # a recipe of the reader's own
    for words in map(program, commands(text)):
        doors = [word for word in words if word in DOORS]
        if doors:
            recipe, overrides = f"recipes/rag_r1/{DOORS[doors[0]]}", words[words.index(doors[0]) + 1 :]
        elif words[:2] in (["rag-r1", "train"], ["rag-r1", "sft"]):
            path = tmp_path / words[3]
            recipe, overrides = str(path) if path.is_file() else words[3], words[4:]
        else:
            continue
        compose_quickly(recipe, [word for word in overrides if "=" in word and word[:2] != "--"])


def test_the_keys_of_a_text_are_found():
    text = (
        "Set `trainer.nnodes=4`, +ray_kwargs.ray_init.address=auto; see data.pt and `critic.use_dynamic_bsz`."
    )
    assert keys(text) == {
        "trainer.nnodes": "4",
        "+ray_kwargs.ray_init.address": "auto",
        "critic.use_dynamic_bsz": None,
    }


def test_every_guide_of_a_training_names_keys_and_commands():
    for name in ("several_nodes", "resuming", "logging", "exporting"):
        text = (ROOT / "docs" / "guides" / f"{name}.md").read_text("utf-8")
        assert keys(text) and any(program(words)[:1] in (["bash"], ["python"]) for words in commands(text)), (
            name
        )


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


def table(text: str, first: str) -> list[list[str]]:
    """The rows of the table whose head holds ``first``, head left out."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|") and first in line)
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            return rows
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_the_estimates_of_memory_follow_from_what_stands_beside_them():
    text = (ROOT / "docs" / "guides" / "memory.md").read_text("utf-8")
    rows = {row[0]: row[1:5] for row in table(text, "| 7B |")}
    for column in range(4):
        sizes = [float(rows[name][column]) for name in ("parameters, 10^9", "layers", "KV heads of 128")]
        parameters, layers, heads = sizes
        left, token = 0.6 * 80 - 2 * parameters, 2 * layers * heads * 128 * 2 / 1e3
        expected = {
            "training state on a GPU, GB": 16 * parameters / 8,
            "vLLM's weights on a GPU, GB": 2 * parameters,
            "left for its cache, GB": left,
            "cache of a token, KB": token,
            "rows of 10,240 tokens in it": left * 1e6 / (10_240 * token),
            "host memory, GRPO, GB": 16 * parameters,
            "host memory, PPO, GB": 28 * parameters,
            "a checkpoint, GRPO, GB": 12 * parameters,
            "a checkpoint, PPO, GB": 24 * parameters,
        }
        for name, value in expected.items():
            cell = rows[name][column]
            assert value < 0 if cell == "-" else abs(float(cell) - value) <= 0.51, (name, column, value)
    shape = SHAPES["7B"]
    for tokens, inputs, activations, logits, whole, fused in table(text, "tokens in a micro batch |"):
        number = int(tokens.replace(",", ""))
        layers, scores = number * 28 * 3584 * 2 / 1e9, number * 152_064 * 10 / 1e9
        layer = 2 * number * (4 * 3584 + 3584 + 2 * 512 + 3 * 18_944) * 2 / 1e9
        cells = [float(cell) for cell in (inputs, activations, logits)]
        assert cells == pytest.approx([layers, layer, scores], abs=0.1)
        every = [training_bytes(shape, 4, 8, number, fused=kernels) + CONTEXTS for kernels in (False, True)]
        assert [float(whole), float(fused)] == pytest.approx([size / 1e9 for size in every], abs=0.51)
