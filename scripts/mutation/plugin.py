"""A pytest plugin that records results for scripts/mutants.py, in the processes that it starts.

$MUTANTS is a JSON object (runs.py): `result` is the file to write, `tree` the copy, `packages` its top-level
packages, and `collected` a file that appears when the imports are finished and the tests begin. If `cover` is
true, the result has the lines that each test executes, for the tests that pass, and their seconds. Otherwise
it has the tests that were collected and those that failed.

Since an editable installation leads to the checkout, the result also names the modules of the packages that
were not imported from the copy; there must be none.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from pathlib import Path

import pytest

_SESSION = json.loads(os.environ["MUTANTS"])
_TREE = Path(_SESSION["tree"])


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Cover() if _SESSION["cover"] else Outcomes())


def _write(**result: object) -> None:
    """Write the result of the session, and the modules that were not imported from the copy."""
    Path(_SESSION["result"]).write_text(json.dumps({"elsewhere": _elsewhere(), **result}), encoding="utf-8")


def _elsewhere() -> list[str]:
    """Return the files of the packages' modules that were not imported from the copy."""
    files = (
        getattr(module, "__file__", None)
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in _SESSION["packages"]
    )
    return sorted(file for file in files if file and _TREE not in Path(file).resolve().parents)


class Outcomes:
    """Records the collected tests, and the tests and files that fail."""

    def __init__(self) -> None:
        self.tests: list[str] = []
        self.failed: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.tests = [item.nodeid for item in items]

    def pytest_collection_finish(self) -> None:
        Path(_SESSION["collected"]).touch()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        _write(tests=self.tests, failed=self.failed)


class Cover:
    """Records the lines that each test executes, from the setup of its fixtures to their teardown."""

    def __init__(self) -> None:
        from coverage import Coverage

        include = [str(_TREE / package / "*") for package in _SESSION["packages"]]
        self.coverage = Coverage(data_file=None, config_file=False, include=include)
        self.seconds: dict[str, float] = defaultdict(float)
        self.passed: set[str] = set()
        self.failed: set[str] = set()
        self.coverage.start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item):
        self.coverage.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self.coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.add(report.nodeid)
        elif report.passed and report.when == "call":
            self.passed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the tests that passed, and for each line the tests that execute it."""
        self.coverage.stop()
        data = self.coverage.get_data()
        tests = sorted(self.passed - self.failed)
        indexes = {test: index for index, test in enumerate(tests)}
        # Many lines are executed by the same tests, so each set of tests is written only once.
        groups: dict[tuple[int, ...], int] = {}
        lines = {}
        for file in sorted(data.measured_files()):
            result = {}
            for line, contexts in sorted(data.contexts_by_lineno(file).items()):
                if group := tuple(sorted(indexes[test] for test in contexts if test in indexes)):
                    result[line] = groups.setdefault(group, len(groups))
            lines[Path(file).relative_to(_TREE).as_posix()] = result
        seconds = [round(self.seconds[test], 3) for test in tests]
        _write(tests=tests, seconds=seconds, groups=list(groups), lines=lines, failed=sorted(self.failed))
