"""Old names of modules: they are importable for one release, and are the new modules."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from rag_r1.system.renamed_modules import renamed_modules

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(old for old, new in renamed_modules().items() if new.startswith(f"{old}."))


def test_every_new_name_exists_and_no_old_one_is_a_module_of_its_own():
    for old, new in renamed_modules().items():
        assert importlib.util.find_spec(new) is not None, new
        spec = importlib.util.find_spec(old)
        assert old in PACKAGES or new in (spec.name, getattr(spec.loader, "new", None))
        # The old name would win, and hide a module that has it again.
        assert not (ROOT / old.replace(".", "/")).with_suffix(".py").exists(), old


def test_an_old_name_is_the_new_module_and_says_so():
    with pytest.warns(DeprecationWarning, match="rag_r1.rows is now rag_r1.data.rows"):
        sys.modules.pop("rag_r1.rows", None)
        old = importlib.import_module("rag_r1.rows")
    new = importlib.import_module("rag_r1.data.rows")
    assert old is new and new.__spec__.name == "rag_r1.data.rows"


def test_a_package_with_the_name_of_an_old_module_has_its_names():
    with pytest.warns(DeprecationWarning, match="RagR1Config is now in rag_r1.config.schema"):
        from rag_r1.config import RagR1Config
    from rag_r1.config.schema import RagR1Config as Same

    assert RagR1Config is Same
    with pytest.raises(ImportError, match="no_such_name"):
        from rag_r1.config import no_such_name  # noqa: F401


@pytest.mark.parametrize("package", PACKAGES)
def test_every_such_package_forwards(package):
    new = importlib.import_module(renamed_modules()[package])
    names = [name for name, value in vars(new).items() if getattr(value, "__module__", None) == new.__name__]
    with pytest.warns(DeprecationWarning):
        getattr(importlib.import_module(package), next(name for name in names if not name.startswith("_")))


def test_a_module_of_a_renamed_package_is_not_loaded_twice():
    with pytest.warns(DeprecationWarning):
        old = importlib.import_module("rag_r1.limited.worker")
    assert old is importlib.import_module("rag_r1.sandbox.worker")


def test_an_experiment_that_was_run_by_its_module_says_where_it_is():
    done = subprocess.run(
        [sys.executable, "-m", "rag_r1.demo.memory"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and "python -m examples.memory.run" in done.stderr


def test_a_term_of_a_users_own_may_still_import_the_old_exception():
    from rag_r1.rewards import CannotJudgeError, Refused

    assert Refused is CannotJudgeError
