"""The structure of the code: sizes of folders and modules, and strings that name modules."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOPS = ("rag_r1", "retrieval_server", "data_process", "examples")
MODULES = sorted(
    path for top in TOPS for path in (ROOT / top).rglob("*.py") if "__pycache__" not in path.parts
)
#: A dotted path of ours in a text: `rag_r1.agent.episode`, `rag_r1.tools.retrieval.client:make_retrieval`.
DOTTED = re.compile(rf"(?<![\w./\-@])((?:{'|'.join((*TOPS, 'tests'))})(?:\.(?!md\b)[a-z_]\w*)+)(?::(\w+))?")
IMPORT = re.compile(r"^ *(from|import) .*", re.MULTILINE)
#: The keys of our configuration stand under the name of the package.
KEYS = ROOT / "recipes" / "rag_r1_defaults.yaml"
#: Names of loggers, a key of a chat's answer, a group of entry points, and an old name as an example.
NOT_MODULES = {
    "rag_r1.commands",
    "rag_r1.ignored",
    "rag_r1.limited",
    "rag_r1.limited.worker",
    "retrieval_server.note",
    "retrieval_server.requests",
}
TEXTS = ("*.md", "*.toml", "*.yaml", "*.yml", "*.sh")


def test_only_the_command_and_veRLs_name_lie_loose():
    assert {path.name for path in (ROOT / "rag_r1").glob("*.py")} == {
        "__init__.py",
        "cli.py",
        "session_trainers.py",
    }


@pytest.mark.parametrize("folder", sorted({path.parent for path in MODULES}), ids=lambda path: path.name)
def test_a_folder_has_at_most_15_modules(folder: Path):
    assert len([path for path in folder.glob("*.py") if path.name != "__init__.py"]) <= 15


def test_a_module_has_at_most_300_lines():
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {str(path.relative_to(ROOT)): count for path, count in lines.items() if count > 300} == {}


def test_every_folder_with_modules_is_a_package_that_says_what_it_holds():
    inits = {path.parent / "__init__.py" for path in MODULES}
    assert [
        path for path in inits if not (path.is_file() and ast.get_docstring(ast.parse(path.read_text())))
    ] == []


def test_every_module_begins_with_a_sentence():
    def begins_well(path: Path) -> bool:
        # By a pattern: parsing all modules takes half a second.
        begin = re.match(r'(?:#.*\n|\s)*"""(.+?)(?:\n\n|""")', path.read_text(encoding="utf-8"), re.DOTALL)
        paragraph = begin[1].strip() if begin else ""
        return bool(re.match(r"[A-Z`]|veRL|uvicorn", paragraph)) and paragraph[-1] in ".:`?"

    assert [str(path.relative_to(ROOT)) for path in MODULES if not begins_well(path)] == []


def test_command_lines_are_read_at_the_edge_only():
    """What one part tells another are typed arguments: nobody parses words of its own making, and nobody
    catches a parser that ends the process."""
    faults = []
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        # Parsed are only modules with one of these words, here and below: parsing all takes seconds.
        for node in ast.walk(ast.parse(text)) if re.search("SystemExit|read_arguments", text) else ():
            place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.ExceptHandler) and node.type and "SystemExit" in ast.unparse(node.type):
                faults.append(f"{place} catches SystemExit")
            if not isinstance(node, ast.FunctionDef):
                continue
            parameters = {argument.arg for argument in node.args.args}
            for call in ast.walk(node):
                if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "read_arguments":
                    words = ast.unparse(call.args[1])
                    if words.partition("[")[0] not in parameters:
                        faults.append(f"{place} {node.name} reads {words}, which is no parameter")
    assert faults == []


@cache
def keys() -> frozenset[str]:
    """First parts of our configuration's keys, such as `retriever` of `rag_r1.retriever.url`."""
    names = re.findall(r"^ {2}#? ?([a-z_]+):", KEYS.read_text(encoding="utf-8"), re.MULTILINE)
    return frozenset(names)


@cache
def source_of(module: str) -> Path | None:
    """The file of a module, or the folder of a package without one. Nothing is imported."""
    path = ROOT.joinpath(*module.split("."))
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py", path) if p.exists()), None)


@cache
def words_of(module: str) -> frozenset[str]:
    """All names in a module's source, and its other words."""
    path = source_of(module)
    return frozenset(re.findall(r"\w+", path.read_text(encoding="utf-8"))) if path.is_file() else frozenset()


def named(text: str) -> Iterator[str]:
    """The dotted paths of a text that name no module, nothing in a module and no key of the configuration."""
    for dotted, attribute in DOTTED.findall(text):
        if (
            dotted in NOT_MODULES
            or dotted.startswith("rag_r1.")
            and dotted.split(".")[1] in keys()
            and not attribute
        ):
            continue
        parts, rest = dotted.split("."), [attribute] if attribute else []
        while len(parts) > 1 and not source_of(".".join(parts)):
            rest.insert(0, parts.pop())
        if rest and rest[0] not in words_of(".".join(parts)):
            yield f"{dotted}:{attribute}" if attribute else dotted


def files() -> list[str]:
    out = subprocess.run(["git", "ls-files", *TEXTS], cwd=ROOT, capture_output=True, text=True)
    if out.returncode or not out.stdout:
        pytest.skip("left out: this is no clone")
    return out.stdout.split()


def test_every_module_that_a_page_a_recipe_or_a_setting_names_exists():
    faults = {
        name: missing
        for name in files()
        if (missing := list(named((ROOT / name).read_text(encoding="utf-8"))))
    }
    assert faults == {}


@pytest.mark.parametrize("top", TOPS)
def test_every_module_that_a_string_or_docstring_names_exists(top: str):
    assert named_in_strings(top) == {}


def test_every_helper_of_the_tests_that_a_string_names_exists():
    """Of other packages, tests may name what is not there; test_run_sh.py makes tests of its own."""
    assert named_in_strings("tests", "tests.").keys() == {"tests/test_run_sh.py"}


def named_in_strings(top: str, start: str = "") -> dict[str, list[str]]:
    """By file: the dotted paths of its strings that `named` finds and that begin with `start`."""
    faults = {}
    for path in (ROOT / top).rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if not DOTTED.search(IMPORT.sub("", text)):
            continue
        strings = [n.value for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Constant)]
        texts = [text for text in strings if isinstance(text, str) and start in text]
        if names := [name for text in texts for name in named(text) if name.startswith(start)]:
            faults[str(path.relative_to(ROOT))] = names
    return faults


def test_a_name_of_no_module_is_found():
    assert list(named("python -m rag_r1.no_such_module")) == ["rag_r1.no_such_module"]
    assert list(named("rag_r1.agent.episode:NoSuchName")) == ["rag_r1.agent.episode:NoSuchName"]
    assert list(named("rag_r1.agent.episode:Episode, rag_r1.retriever.url, rag_r1.agent.max_turns=3")) == []


#: Where a process is started, a handler of signals set or a process group ended, and why not by
#: rag_r1/system/child_processes.py and rag_r1/options/command_exit.py.
SUPERVISORS = {
    "rag_r1/system/child_processes.py": "the one place",
    "rag_r1/http_server/stop_signals.py": "uvicorn stops orderly, and raises the signal again",
    "rag_r1/runs/processes.py": "ends what an earlier start has left: no children of this process",
    "rag_r1/sandbox/worker.py": "the worker itself: limits, and Ctrl-C is its parent's",
    "rag_r1/sandbox/worker_pool.py": "workers that are spoken to over pipes, and killed within a job",
    "rag_r1/serving/mcp/command.py": "an exception would wait for the thread that reads stdin",
    "rag_r1/tools/mcp/streams.py": "asynchronous, and a server is first asked by closing its stdin",
    "retrieval_server/serve/process.py": "a program of its own, which stops orderly",
}
SUPERVISING = {
    "asyncio.create_subprocess_exec",
    "os.fork",
    "os.kill",
    "os.killpg",
    "signal.signal",
    "subprocess.Popen",
    "anyio.open_process",
}


def supervising(text: str) -> set[str]:
    """The calls with which a module starts and ends processes, or handles signals."""
    if not re.search("|".join(name.rpartition(".")[2] for name in SUPERVISING), text):
        return set()
    calls = (node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    return {ast.unparse(call) for call in calls} & {*SUPERVISING, "Popen"}


def test_children_and_signals_are_handled_in_one_place_and_by_those_that_cannot_use_it():
    modules = [*MODULES, *(ROOT / "recipes").rglob("*.py")]
    supervisors = {
        str(path.relative_to(ROOT)) for path in modules if supervising(path.read_text(encoding="utf-8"))
    }
    assert supervisors == set(SUPERVISORS)


def test_a_process_of_ones_own_is_found():
    assert supervising("import subprocess\nwith subprocess.Popen(['true']) as it:\n    it.wait()") != set()
    assert supervising("signal.signal(signal.SIGTERM, stop)") == {"signal.signal"}
    assert supervising("def wait(it: subprocess.Popen) -> None: ...") == set()
