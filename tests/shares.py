"""Runs shares of the tests until none is left, for tests/run.sh, which starts two such processes.

    python tests/shares.py RESULTS NAME front|back [pytest options]

A share is a folder of tests, or what HEAVY names of it; one with many files is divided evenly. The processes
go through the same list, one from the front and the other from the back. Each takes a share by making a
folder named after it in RESULTS/taken, which only one of them can do; so they end within about one share of
each other, wherever they meet.

The list begins with the tests whose imports cost most, veRL before all, then torch and transformers: the
process at the back does not pay for what it does not come to. A process runs all of its shares itself, by one
call of pytest each, so that what one imports is there for the next. Each leaves RESULTS/NAME-SHARE.xml and
.status for tests/tally.py.

Why not pytest-xdist, with `--dist loadfile`: each of its workers collects all files, whatever it then runs.
Collecting the 6,600 unit tests takes 26 s of CPU, most of it for imports (veRL, torch, transformers);
the process from the back gets away with 4. Two workers would add ten seconds to the unit tier, whose bar is
90. Nor does xdist keep the trainings apart, and it would be one more package of the environment.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from math import ceil
from pathlib import Path

import pytest

#: Beginnings of paths: tests that import veRL, then those that import torch or transformers.
HEAVY = """
    plugin recipes e2e chaos
    training/doctor training/preflight training/guard inference/nf4 retriever sft examples demo benchmarks
    retrieval_server/encode retrieval_server/indexing retrieval_server/search retrieval_server/cluster
    retrieval_server/engine retrieval_server/test_checks.py retrieval_server/test_determinism.py
    retrieval_server/folder/test_manifest.py retrieval_server/server/test_app.py
    retrieval_server/server/test_reload.py
    agent/tokens agent/test_chat_turns_episode.py agent/test_episode_properties.py
    agent/test_hostile_faults.py protocols/test_chat_turns.py protocols/test_neutraliser.py
    rollouts/test_chat_turns.py rollouts/test_checks.py evaluation/test_run_defaults.py
    system/test_renamed_modules.py iterate/test_miniature.py training/test_recipe_table.py
    options/test_checks_of_commands.py serving
""".split()
FILES_AT_MOST = 12


def shares(tests: Path) -> dict[str, list[str]]:
    """The files of each share by its name, in the order of the list; each test file is in one of them."""
    folders: dict[str, list[str]] = defaultdict(list)
    places: dict[str, int] = {}
    for path in sorted(tests.rglob("test_*.py")):
        inner = path.relative_to(tests)
        name = inner.parts[0] if len(inner.parts) > 1 else "tests"
        place = next((i for i, begin in enumerate(HEAVY) if inner.is_relative_to(begin)), len(HEAVY))
        if place < len(HEAVY) and HEAVY[place] != name:
            name += "-heavy"
        folders[name].append(str(path))
        places[name] = min(place, places.get(name, place))

    by_name = {}
    for folder in sorted(folders, key=lambda name: (places[name], name)):
        files = folders[folder]
        parts = ceil(len(files) / FILES_AT_MOST)
        for part in range(parts):
            first, end = len(files) * part // parts, len(files) * (part + 1) // parts
            by_name[f"{folder}-{part + 1}"] = files[first:end]
    return by_name


class End:
    """Notes that pytest was told to stop, as by `-x` or Ctrl-C; an error in a file's imports is not that."""

    requested = False

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.requested = self.requested or bool(session.shouldstop or session.shouldfail)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo) -> None:
        self.requested = self.requested or not isinstance(excinfo.value, pytest.Session.Interrupted)


def take(taken: Path, share: str) -> bool:
    """Whether no process has had the share before."""
    try:
        (taken / share).mkdir()
    except FileExistsError:
        return False
    return True


def main(results: Path, name: str, end: str, options: list[str]) -> None:
    listed = list(shares(Path("tests")).items())
    for share, files in listed if end == "front" else reversed(listed):
        if (results / "stop").exists():
            return
        if not take(results / "taken", share):
            continue
        stop = End()
        output = results / f"{name}-{share}.xml"
        status = pytest.main(["--no-header", f"--junitxml={output}", *options, *files], plugins=[stop])
        if status != pytest.ExitCode.NO_TESTS_COLLECTED:
            output.with_suffix(".status").write_text(f"{int(status)}\n")
        if stop.requested:
            (results / "stop").touch()


if __name__ == "__main__":
    sys.path[0] = str(Path.cwd())  # as `python -m pytest` has it
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
