"""The wheel beside its base dependencies and nothing else, in an empty folder: every help, and what each
command says about an extra that is missing."""

from __future__ import annotations

import re
import zipfile
from concurrent.futures import ThreadPoolExecutor
from email.parser import HeaderParser
from importlib import import_module
from pathlib import Path

import pytest

from rag_r1.cli import COMMANDS
from rag_r1.config.recipes import RECIPES
from tests.wheel.wheel_environments import ROOT, Environment

pytestmark = pytest.mark.slow

#: Subcommands of commands that read them themselves.
READ_BY_THEMSELVES = {"eval": ("report", "compare")}


def every_command() -> list[tuple[str, ...]]:
    """`rag-r1`, its commands and theirs."""
    commands: list[tuple[str, ...]] = [()]
    for command, (name, _) in COMMANDS.items():
        below = getattr(import_module(name), "COMMANDS", READ_BY_THEMSELVES.get(command, ()))
        commands += [(command,), *((command, subcommand) for subcommand in below)]
    return commands


def test_every_help_works_from_the_base_installation(bare: Environment, tmp_path: Path):
    before = files_of(bare.site)

    def helped(command: tuple[str, ...]) -> str | None:
        done = bare.run("rag-r1", *command, "--help", cwd=tmp_path)
        usage = " ".join(["usage: rag-r1", *command])
        right = done.returncode == 0 and done.stderr == "" and done.stdout.startswith(usage)
        return (
            None
            if right
            else f"{' '.join(command)}: {done.returncode}\n{done.stdout[:80]}\n{done.stderr[-400:]}"
        )

    commands = every_command()
    with ThreadPoolExecutor(2) as pool:
        assert [fault for fault in pool.map(helped, commands) if fault] == []
    assert len(commands) > 25 and ("retriever", "train") in commands and ("recipes", "copy") in commands
    assert list(tmp_path.iterdir()) == [] and files_of(bare.site) == before


def files_of(folder: Path) -> set[Path]:
    """What is in an environment, but for what Python compiles."""
    return {path for path in folder.rglob("*") if "__pycache__" not in path.parts}


def test_nothing_of_a_training_or_a_server_can_be_imported(bare: Environment, tmp_path: Path):
    """What the other tests here rely on."""
    names = [
        "torch",
        "verl",
        "vllm",
        "ray",
        "hydra",
        "transformers",
        "tokenizers",
        "fastapi",
        "faiss",
        "bm25s",
    ]
    program = (
        "import rag_r1\nfrom importlib.util import find_spec\n"
        f"print([name for name in {names} if find_spec(name)], rag_r1.__file__)"
    )
    done = bare.run("python", "-c", program, cwd=tmp_path)
    assert done.stdout == f"[] {bare.site / 'rag_r1' / '__init__.py'}\n"


@pytest.mark.parametrize(
    ("command", "module", "extra"),
    [
        ("demo", "verl", "cpu"),
        ("pipeline --out out", "verl", "cpu"),
        ("train --recipe rag_r1/grpo", "hydra", "cpu"),
        ("sft --recipe rag_r1/sft/demo", "omegaconf", "cpu"),
        ("stages --recipe rag_r1/grpo --out out", "hydra", "cpu"),
        ("recipes show rag_r1/grpo --composed", "omegaconf", "cpu"),
        ("serve --demo", "vllm", "cpu"),
        ("chat --demo", "vllm", "cpu"),
        ("serve --model m --base-url http://127.0.0.1:1/v1", "fastapi", "bm25"),
        ("chat --model m --base-url http://127.0.0.1:1/v1", "fastapi", "bm25"),
        ("retriever train --rows a --corpus b --out out --model m", "transformers", "retriever"),
        ("mcp --retriever-url http://127.0.0.1:1", "mcp", "mcp"),
        ("view .", "duckdb", "view"),
    ],
)
def test_a_missing_extra_is_named_with_its_pip_line(bare, tmp_path, command, module, extra):
    done = bare.run("rag-r1", *command.split(), cwd=tmp_path, RAG_R1_PLATFORM="cpu")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    # The only problem, or one of several: a server may be dead, too.
    first, *others = [line for line in done.stderr.splitlines() if line.startswith(("error:", "  - "))]
    assert first.startswith("error:")
    (line,) = [line for line in (first, *others) if line.endswith(f'pip install "rag-r1[{extra}]"')]
    assert module in line


def test_recipes_are_listed_shown_and_copied_from_inside_the_package(bare: Environment, tmp_path: Path):
    shipped = bare.site / "rag_r1" / "recipes"
    assert bare.run("rag-r1", "recipes", "path", cwd=tmp_path).stdout == f"{shipped}\n"
    assert "rag_r1/grpo " in bare.run("rag-r1", "recipes", cwd=tmp_path).stdout
    text = bare.run("rag-r1", "recipes", "show", "recipes/rag_r1/grpo.yaml", cwd=tmp_path).stdout
    assert text == (RECIPES / "rag_r1" / "grpo.yaml").read_text(encoding="utf-8")
    assert bare.run("rag-r1", "recipes", "copy", "rag_r1/grpo", "mine", cwd=tmp_path).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]


def test_scripts_of_a_recipe_run_from_the_wheel(bare: Environment, tmp_path: Path):
    """Up to the doctor, for which this environment is too small; none looks for a clone."""
    for name, variable in (("r1_searcher", "RETRIEVER_URL"), ("rag_r1/sft", "MODEL")):
        script = bare.site / "rag_r1" / "recipes" / name / "run.sh"
        assert variable in bare.run("python", "-c", shell(script, "--help"), cwd=tmp_path).stdout
        done = bare.run(
            "python", "-c", shell(script), cwd=tmp_path, MODEL="m", DATA="d", RETRIEVER_URL="http://u"
        )
        assert "No such file" not in done.stderr + done.stdout
        assert "rag-r1[cpu]" in done.stderr + done.stdout


def shell(*words: object) -> str:
    return f"import os; os.execvp('bash', {['bash', *map(str, words)]!r})"


def test_data_is_processed_by_modules(bare: Environment, tmp_path: Path):
    done = bare.run("python", "-m", "data_process.hotpotqa_search_mq", "--help", cwd=tmp_path)
    assert done.returncode == 0 and "--train" in done.stdout


def test_the_wheel_has_every_file_of_the_recipes_and_nothing_else_of_the_repository(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    inside = {name.removeprefix("rag_r1/recipes/") for name in names if name.startswith("rag_r1/recipes/")}
    kept = {path for path in RECIPES.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert inside == {path.relative_to(RECIPES).as_posix() for path in kept}
    packages = {"rag_r1", "retrieval_server", "data_process"}
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == packages
    assert not [name for name in names if name.endswith((".pyc", ".log")) or "/outputs/" in name]


def test_the_metadata_is_complete_and_has_no_link_into_a_clone(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        headers = HeaderParser().parsestr(archive.read(name).decode())
        (licence,) = [name for name in archive.namelist() if name.endswith("/licenses/LICENSE")]
        assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()
    assert headers["Name"] == "rag-r1" and headers["License-Expression"] == "Apache-2.0"
    assert (
        headers["Summary"] and headers["Keywords"] and headers["Description-Content-Type"] == "text/markdown"
    )
    classifiers = headers.get_all("Classifier")
    for version in ("3.11", "3.12"):
        assert f"Programming Language :: Python :: {version}" in classifiers
    assert "Operating System :: POSIX :: Linux" in classifiers
    description = headers.get_payload()
    assert len(description.split()) > 100
    assert [link for link in links(description) if not link.startswith("https://")] == []
    extras = set(headers.get_all("Provides-Extra"))
    assert {extra for extra in extras if f"rag-r1[{extra}]" in description} >= {"cpu", "gpu", "retrieval"}


def links(markdown: str) -> list[str]:
    return re.findall(r"\]\(([^)]+)\)", markdown) + re.findall(r"(?:src|href)=\"([^\"]+)\"", markdown)
