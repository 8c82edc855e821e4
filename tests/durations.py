"""The tier of a test by the time that it takes: conftest.py reads durations.txt, this command writes it.

    TEST_RESULTS=DIR bash tests/run.sh tests -m "not e2e and not nightly"    # or only the tests that are new
    python tests/durations.py DIR [DIR ...]

A tier has a fixed length, however many tests are added. So a test function that takes SLOW seconds, all of
its cases together, is `slow`, and one that takes FULL seconds is `full`, as if it were marked so. Each line
of durations.txt is such a function with its seconds: those of the shortest of the runs given, since `unit`
tries fewer examples of a property. A function that none of the runs had keeps its line; one that does not
exist any more loses it. Trainings (`e2e`) and `nightly` tests stay in the tier that they are marked for.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

DURATIONS = Path(__file__).with_name("durations.txt")
SLOW, FULL = 0.2, 1.0
_FUNCTION = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)


def read(path: Path = DURATIONS) -> dict[str, float]:
    """The seconds of each function that is not quick, by `tests/a/test_b.py::test_c`."""
    rows = [line.split() for line in path.read_text().splitlines()[1:]]  # the first names the machine
    return {name: float(seconds) for seconds, name in rows}


def measured(results: Path) -> Counter[str]:
    """The seconds of each function in the JUnit files of a run, without its trainings."""
    total: Counter[str] = Counter()
    for path in sorted(results.glob("*.xml")):
        if path.stem != "trainings":
            for case in ElementTree.parse(path).getroot().iter("testcase"):
                file = str(case.get("classname")).replace(".", "/") + ".py"
                total[f"{file}::{str(case.get('name')).partition('[')[0]}"] += float(case.get("time", 0))
    return total


def functions(tests: Path) -> set[str]:
    """All test functions below a folder, named from the folder above it."""
    return {
        f"{path.relative_to(tests.parent)}::{name}"
        for path in tests.rglob("test_*.py")
        for name in _FUNCTION.findall(path.read_text())
    }


def updated(old: dict[str, float], runs: list[Counter[str]], existing: set[str]) -> dict[str, float]:
    """The functions that are not quick, after these runs."""
    measured_names = {name for run in runs for name in run}
    new = old | {name: min(run[name] for run in runs if name in run) for name in measured_names}
    return {name: round(s, 1) for name, s in sorted(new.items()) if name in existing and s >= SLOW}


def main(arguments: list[str]) -> int:
    runs = [measured(Path(folder)) for folder in arguments]
    if not all(runs) or not runs:
        print(__doc__, file=sys.stderr)
        return 2
    rows = updated(read(), runs, functions(DURATIONS.parent))
    machine = DURATIONS.read_text().splitlines()[0]
    DURATIONS.write_text("\n".join([machine, *(f"{s:6.1f} {name}" for name, s in rows.items())]) + "\n")
    full = sum(s >= FULL for s in rows.values())
    print(f"{len(rows)} functions of {SLOW} s or more, {full} of them of {FULL:g} s or more")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
