"""Contacts are found in a source: imports, what overrides, what is inherited, processes, citations."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.contacts import Scan
from tests.contract.verl_source import Sources

VERL = {
    "verl/__init__.py": "from .core import Base as Base\n",
    "verl/core.py": """
class Root:
    def __init__(self, a):
        self.kept, self._hidden = a, []
    def walk(self): ...
    def run(self): ...

class Base(Root):
    def run(self): ...
    def other(self): ...

class Registry:
    _entries = {}
    @classmethod
    def register(cls, name): ...

def register(name): ...
def main(): ...
""",
    "verl/sub/core.py": "def only_here(): ...\n",
    "verl/sub/__init__.py": "",
}


@pytest.fixture
def scan(tmp_path):
    """The contacts of a package rag_r1 whose plugin has this source, with a veRL of a few lines."""

    def scanned(source: str) -> Scan:
        ours = {"rag_r1/__init__.py": "", "rag_r1/plugin/__init__.py": source}
        for folder, files in (("site", VERL), ("project", ours)):
            for name, text in files.items():
                path = Path(tmp_path, folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        project = tmp_path / "project"
        roots = {"verl": tmp_path / "site" / "verl", "rag_r1": project / "rag_r1"}
        return Scan(Sources(roots), project, declared={})

    return scanned


def uses(scan: Scan) -> dict[str, list[str]]:
    return {f"{module}:{name}": sorted(uses) for (module, name), uses in scan.contacts.items()}


def test_an_import_is_followed_to_its_definition_and_decorators_register(scan):
    source = """
import verl.core as c
def late():
    from verl import Base
    return c.Registry._entries
from verl.core import Registry, register
@register("x")
class A: ...
@Registry.register("y")
class B: ...
"""
    assert uses(scan(source)) == {
        "verl.core:Base": ["imported"],
        "verl.core:Registry": ["imported"],
        "verl.core:Registry.register": ["registered"],
        "verl.core:register": ["registered"],
    }


def test_a_name_with_an_underscore_is_private(scan):
    source = "from verl.core import Registry\nprint(Registry._entries)\n"
    assert uses(scan(source))["verl.core:Registry._entries"] == ["private"]


def test_what_a_mixin_overrides_and_inherits_is_that_of_the_class_made_with_it(scan):
    source = """
from verl import Base
class Mixin:
    own = 1
    def __init__(self):
        super().__init__(self.own)
    def run(self):
        self._hidden.append(self.kept)
        super().walk()
class Ours(Mixin, Base): ...
"""
    assert uses(scan(source)) == {
        "verl.core:Base": ["imported"],
        "verl.core:Base.run": ["overridden"],
        "verl.core:Root.__init__": ["overridden"],
        "verl.core:Root._hidden": ["private"],
        "verl.core:Root.kept": ["inherited"],
        "verl.core:Root.walk": ["inherited"],
    }


def test_a_module_that_is_named_in_a_string_is_run(scan):
    assert uses(scan('COMMAND = ["python", "-m", "verl.core"]')) == {"verl.core:main": ["run"]}


def test_citations_name_functions_methods_and_the_same_file(scan):
    source = '''"""See verl/core.py, `main`,
`Base.run` and `walk`; and the same file, `register`. (sub/core.py, `only_here`)"""
#: A comment (verl/sub/core.py,
#: `only_here`).
'''
    assert uses(scan(source)) == {
        "verl.core:Base.run": ["cited"],
        "verl.core:Root.walk": ["cited"],
        "verl.core:main": ["cited"],
        "verl.core:register": ["cited"],
        "verl.sub.core:only_here": ["cited"],
    }


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ('"""verl/core.py, line 7."""', "name the function or class"),
        ('"""verl/core.py, `nothing`."""', "no such file of veRL has these names"),
        ("from verl.core import nothing", "verl.core has no nothing"),
        ("from verl.core import Base\nBase.nothing", "verl.core has no Base.nothing"),
    ],
)
def test_what_is_not_in_verl_is_a_fault(scan, source, fault):
    (message,) = scan(source).faults
    assert message.startswith("rag_r1/plugin/__init__.py: ") and fault in message
