"""Few modules know veRL outside rag_r1/plugin, and each has its reason; one module knows its store."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.contract.verl_source import ROOT

#: Outside of rag_r1/plugin -> why there. A new line here is a decision: most contacts belong into the plugin.
PLACES = {
    "rag_r1/training/next_steps.py": "names veRL's merger in the commands that it prints",
    "rag_r1/training/doctor/registration.py": "looks at veRL's registries after a plain `import verl`, as in"
    " a worker; it must not import the plugin, since it checks whether veRL does",
    "rag_r1/inference/model_folders/shard_merge.py": "starts veRL's merger in a process of its own",
    "rag_r1/system/concurrent_trainings.py": "knows other trainings by the module that they run",
    "rag_r1/training/preflight/model.py": "loads the tokenizer as veRL does",
    "rag_r1/training/preflight/settings.py": "veRL's own validation is one of the checks",
    "rag_r1/config/recipes.py": "starts veRL's trainer",
    "rag_r1/training/loggers.py": "asks veRL which loggers there are",
    "rag_r1/retriever/training/trainer.py": "logs to veRL's loggers, if veRL is installed",
    "rag_r1/sft/train_command.py": "starts veRL's SFT trainer",
}
STORE = "rag_r1/plugin/sample_store.py"


def imported(source: str) -> set[str]:
    """The top packages that a source imports: at its top, late, or by a name in a string."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = ast.unparse(node.func).rpartition(".")[2]
            if called in ("import_module", "__import__"):
                names.add(str(node.args[0].value))
    return {name.partition(".")[0] for name in names}


def modules_that_import(package: str) -> set[str]:
    texts = {path: path.read_text("utf-8") for path in (ROOT / "rag_r1").rglob("*.py")}
    return {
        path.relative_to(ROOT).as_posix()
        for path, text in texts.items()
        if package in text and package in imported(text)
    }


def test_one_module_imports_verls_store():
    assert modules_that_import("transfer_queue") == {STORE}


def test_verl_is_known_outside_the_plugin_in_these_modules_only(scan):
    kinds = ("imported", "private", "registered", "run")
    places = {place for uses in scan.contacts.values() for kind in kinds for place in uses.get(kind, ())}
    places |= modules_that_import("verl")
    assert {place for place in places if not place.startswith("rag_r1/plugin/")} == PLACES.keys()


def test_an_import_is_found_wherever_it_stands():
    assert imported("import a.b as c\ndef f():\n    from d.e import g\nfrom .h import i") == {"a", "d"}
    assert imported("importlib.import_module('j.k')\nx = __import__('l')\nprint('m')") == {"j", "l"}


def test_all_that_is_named_here_is_there():
    assert [place for place in (*PLACES, STORE) if not Path(ROOT, place).is_file()] == []
