"""Adds up the results that one or several pytest processes wrote into a folder, for tests/run.sh.

Each writes NAME.xml (JUnit) and, unless no test was selected, NAME.status (its exit status). A process that
was killed writes no XML, or half of one, and counts as one failure. At the end, as there are many outputs
above, are the seconds of the folders that took most, and the tests that failed; the last line is the total,
`N passed, N failed, N skipped`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree


def written(folder: Path) -> Iterator[ElementTree.Element]:
    """What each process wrote that came to its end."""
    for path in folder.glob("*.xml"):
        if path.stem not in cut_off(folder):
            yield ElementTree.parse(path).getroot()


def cut_off(folder: Path) -> set[str]:
    """The names of the processes that were killed."""
    names = {path.stem for path in folder.glob("*.status") if not path.with_suffix(".xml").exists()}
    for path in folder.glob("*.xml"):
        try:
            ElementTree.parse(path)
        except ElementTree.ParseError:
            names.add(path.stem)
    return names


def tally(folder: Path) -> tuple[dict[str, int], int]:
    """The counts of all processes, errors among the failed, and the exit status: 0 if every process ended
    with 0 and a test was run."""
    counts = {"passed": 0, "failed": len(cut_off(folder)), "skipped": 0}
    statuses = [int(path.read_text()) for path in folder.glob("*.status")]
    for root in written(folder):
        for suite in root.iter("testsuite"):
            number = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
            failed = number["failures"] + number["errors"]
            counts["failed"] += failed
            counts["skipped"] += number["skipped"]
            counts["passed"] += number["tests"] - failed - number["skipped"]
    bad = [status for status in statuses if status]
    return counts, bad[0] if bad else int(not sum(counts.values()) or counts["failed"] > 0)


def failed(folder: Path) -> list[str]:
    """The names of the tests, or files, that failed or had an error; and of processes that were cut off."""
    names = [f"{name} (cut off)" for name in cut_off(folder)]
    for root in written(folder):
        for case in root.iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                names.append("::".join(filter(None, (case.get("classname"), case.get("name")))))
    return sorted(names)


def seconds(folder: Path) -> Counter[str]:
    """The seconds that the tests of each folder took, trainings included."""
    total: Counter[str] = Counter()
    for root in written(folder):
        for case in root.iter("testcase"):
            took = float(case.get("time", 0))
            total[case.get("classname", "").removeprefix("tests.").partition(".")[0]] += took
    return total


def main(folder: str) -> int:
    counts, status = tally(Path(folder))
    if dearest := [f"{name} {took:.0f}" for name, took in seconds(Path(folder)).most_common(8) if took >= 1]:
        print("seconds:", ", ".join(dearest))
    for name in failed(Path(folder)):
        print(f"failed: {name}")
    print(", ".join(f"{number} {name}" for name, number in counts.items()))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
