"""Tests a random sample of mutants, whose verdicts can be compared before and after a reorganisation.

    python scripts/mutants.py cover --out coverage.json                      needs `pip install coverage`
    python scripts/mutants.py draw --seed 1 --coverage coverage.json --out mutants.json
    python scripts/mutants.py run --mutants mutants.json --out before.jsonl
    ... files move, names change ...
    python scripts/mutants.py run --mutants mutants.json --out after.jsonl --renames renames.json
    python scripts/mutants.py compare before.jsonl after.jsonl

`cover` runs the unit tests once and records which test executes which line. `draw` chooses places in the
code, all with the same probability, and stores each with the fastest tests that execute it, so that the same
tests decide before and after a change. `run` makes each mutant in a copy of the tree, runs its tests until
one fails, and appends the verdict; if it is interrupted, the same command continues. In the end, it checks
that the tests that killed a mutant pass without one. `compare` fails if a mutant that was killed is not
killed any more.

mutmut and cosmic-ray, which are good at testing a whole package, number their mutants by file or function,
and therefore lose them when these are moved or renamed. Neither draws a sample and selects the tests of each
mutant.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutation.drawing import digest_of, draw, sources_of
from mutation.finding import Renames, file_of, find
from mutation.runs import LONGEST, Session, SessionError, copied, copied_again, pytest_in
from mutation.sites import Site, sites
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("rag_r1", "data_process", "retrieval_server")
#: The tests of `tests/run.sh unit`.
UNIT = "not slow and not e2e and not full and not nightly"
#: The largest number of tests that decide about a mutant.
MAX_TESTS = 40
#: Seconds that are added to ten times the usual duration of the tests, for their time limit.
MARGIN = 20.0
#: Verdicts that count as killed.
KILLED = ("killed", "timed out")
VERDICTS = (*KILLED, "survived", "not covered")


def cover(tree: Path, packages: Sequence[str], out: Path) -> None:
    """Write which test executes which line, and how long it takes, for the unit tests that pass in a copy.

    Raises SessionError if the tests cannot be run.
    """
    if importlib.util.find_spec("coverage") is None:
        raise SessionError("coverage.py is not installed: pip install coverage")
    with copied(tree, packages) as copy:
        session = pytest_in(copy, packages, ["-q", "-m", UNIT], visible=True, cover=True)
        result = {"digest": digest_of(sources_of(copy, packages)), **session.result}
    if "tests" not in result:
        raise SessionError(f"the tests ended with status {session.status}, before the lines were written")
    out.write_text(json.dumps(result), encoding="utf-8")
    print(f"{len(result['tests'])} tests pass, {len(result['failed'])} fail and are left out: {out}")


@dataclass(frozen=True)
class Mutant:
    """A mutant that was found in this tree."""

    #: The entry of the file that `draw` wrote.
    drawn: dict[str, Any]
    #: The path of the module, relative to the tree.
    path: str
    site: Site
    #: The source of the module with the mutant.
    mutated: str
    #: The ids of the tests that decide about it.
    tests: list[str]

    def verdict(self, base: Path, packages: Sequence[str]) -> dict[str, Any]:
        """Run the tests in a copy of `base`; returns the verdict. Raises SessionError if they cannot run."""
        verdict = {key: self.drawn[key] for key in ("id", "kind", "before", "after")}
        verdict["place"] = f"{self.path}:{self.site.lines.start}"
        if not self.tests:
            return {**verdict, "verdict": "not covered"}
        started = time.monotonic()
        session = self._session(base, packages, self.mutated, self.drawn["seconds"])
        if session.status is None:
            # The time limit may have been too short: the tests may need imports that other tests had made
            # when `cover` ran, or the machine may be busy. So the time without the mutant is measured.
            usual = self._session(base, packages, None, LONGEST).seconds
            session = self._session(base, packages, self.mutated, usual)
        verdict["seconds"] = round(time.monotonic() - started, 1)
        if session.status is None:
            return {**verdict, "verdict": "timed out"}
        if session.status == 0:
            return {**verdict, "verdict": "survived"}
        failed = session.result.get("failed") or [f"exit status {session.status}"]
        return {**verdict, "verdict": "killed", "by": failed[0]}

    def _session(self, base: Path, packages: Sequence[str], mutated: str | None, usual: float) -> Session:
        """Run the tests in a copy, with a time limit for tests that usually take `usual` seconds."""
        with copied_again(base) as copy:
            if mutated is not None:
                (copy / self.path).write_text(mutated, encoding="utf-8")
            limit = min(LONGEST, 10 * usual + MARGIN)
            return pytest_in(copy, packages, ["-x", "-q", *self.tests], limit=limit)


def found_again(tree: Path, drawn: dict[str, Any], renames: Renames) -> Mutant | str:
    """Return the mutant in this tree, or the reason why it was not found."""
    module = drawn["path"].removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    module, name = renames.place(tree, module, drawn["name"])
    file = file_of(tree, module)
    if file is None:
        return f"there is no module {module}"
    source = file.read_text(encoding="utf-8")
    keys = ("kind", "ordinal", "siblings", "shape")
    site = find(sites(source), name, *(drawn[key] for key in keys))
    if site is None:
        return f"{module} has no such place in {name or 'the module'}: {drawn['before']!r}"
    path = file.relative_to(tree).as_posix()
    return Mutant(drawn, path, site, site.mutated(source), [renames.test(test) for test in drawn["tests"]])


def run(tree: Path, mutants: Path, out: Path, renames: Renames, processes: int) -> bool:
    """Append a verdict for each mutant that has none; returns whether all were found and are reliable.

    Raises SessionError if the tests cannot be run.
    """
    sample = json.loads(mutants.read_text(encoding="utf-8"))
    packages = sorted({name for old in sample["packages"] for name in (old, renames.modules.get(old, old))})
    verdicts = _resume(out)
    undecided = [drawn for drawn in sample["mutants"] if drawn["id"] not in verdicts]
    with copied(tree, packages) as base:
        present, problems = _find_mutants(base, packages, undecided, renames)
        with ThreadPoolExecutor(processes) as pool, open(out, "a", encoding="utf-8") as written:
            jobs = [pool.submit(mutant.verdict, base, packages) for mutant in present]
            try:
                for job in tqdm(as_completed(jobs), total=len(jobs), unit="mutant"):
                    verdicts[job.result()["id"]] = job.result()
                    print(json.dumps(job.result()), file=written, flush=True)
            finally:
                pool.shutdown(cancel_futures=True)  # after Ctrl-C only the running mutants are finished
        killers = sorted({verdict["by"] for verdict in verdicts.values() if "::" in verdict.get("by", "")})
        for test in _result(base, packages, killers)["failed"] if killers else ():
            problems.append(f"{test} fails without a mutant: what it killed does not count")
    _print_table({"verdicts": verdicts})
    for verdict in verdicts.values():
        if verdict["verdict"] == "survived":
            print(f"survived  {_line(verdict)}")
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return not problems


def _find_mutants(
    base: Path, packages: Sequence[str], sample: Sequence[dict[str, Any]], renames: Renames
) -> tuple[list[Mutant], list[str]]:
    """Return the mutants whose place and tests are in this tree, and the problems of the others."""
    results = [found_again(base, drawn, renames) for drawn in sample]
    tests = {test for result in results if isinstance(result, Mutant) for test in result.tests}
    files = sorted(file for file in {test.partition("::")[0] for test in tests} if (base / file).is_file())
    known = set(_result(base, packages, ["--collect-only", *files])["tests"] if files else ())
    present, problems = [], []
    for drawn, result in zip(sample, results, strict=True):
        problem = result
        if isinstance(result, Mutant):
            if known.issuperset(result.tests):
                present.append(result)
                continue
            problem = f"no test {', '.join(sorted({*result.tests} - known))}"
        problems.append(f"{drawn['id']} ({drawn['path']}:{drawn['line']}): {problem}")
    return present, problems


def _result(base: Path, packages: Sequence[str], arguments: Sequence[str]) -> dict[str, Any]:
    """Return the result that the plugin wrote without a mutant. Raises SessionError if it wrote none."""
    session = pytest_in(base, packages, ["-q", *arguments])
    if not session.result:
        raise SessionError(f"pytest fails without a mutant:\n{session.output}")
    return session.result


def _resume(path: Path) -> dict[str, dict[str, Any]]:
    """Return the verdicts in the file of an earlier run, if any, and cut off its incomplete last line."""
    if not path.exists():
        return {}
    os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
    return read_verdicts(path)


def read_verdicts(path: Path) -> dict[str, dict[str, Any]]:
    """Return the verdicts in a file by the ids of mutants. Raises OSError, or ValueError for a bad line."""
    *lines, _ = path.read_bytes().split(b"\n")  # without an incomplete last line, which a kill may leave
    return {verdict["id"]: verdict for verdict in map(json.loads, lines)}


def compare(before: Mapping[str, dict[str, Any]], after: Mapping[str, dict[str, Any]]) -> bool:
    """Print the counts and every changed verdict; returns whether all killed mutants are still killed."""
    _print_table({"before": before, "after": after})
    lost = 0
    for mutant_id in sorted({*before, *after}):
        old, new = (verdicts.get(mutant_id, {}).get("verdict", "no verdict") for verdicts in (before, after))
        if old != new:
            weaker = old in KILLED and new not in KILLED
            lost += weaker
            line = _line(after.get(mutant_id) or before[mutant_id])
            print(f"{'error: ' if weaker else ''}{old} -> {new}  {line}")
    return not lost


def _print_table(columns: Mapping[str, Mapping[str, dict[str, Any]]]) -> None:
    """Print the number of each verdict, with a column for each file of verdicts."""
    counts = {name: Counter(entry["verdict"] for entry in file.values()) for name, file in columns.items()}
    print(f"{'':12}" + "".join(f"{name:>10}" for name in counts))
    for verdict in VERDICTS:
        print(f"{verdict:12}" + "".join(f"{count[verdict]:>10}" for count in counts.values()))
    print(f"{'together':12}" + "".join(f"{count.total():>10}" for count in counts.values()))


def _line(verdict: Mapping[str, Any]) -> str:
    """Return the line that describes a mutant."""
    change = f"{verdict['before']!r} -> {verdict['after']!r}"
    return f"{verdict['id']}  {verdict['place']}  {verdict['kind']}: {change}"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the arguments of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", required=True)
    parsers = {
        name: commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        for name, text in {
            "cover": "run the unit tests once and write their lines (needs `pip install coverage`)",
            "draw": "draw mutants and their tests",
            "run": "write a verdict for each mutant that has none yet",
            "compare": "compare two files of verdicts; status 1 if a mutant is not killed any more",
        }.items()
    }
    for name in ("cover", "draw", "run"):
        parsers[name].add_argument(
            "--tree", type=Path, default=ROOT, help="the repository (default: this one)"
        )
        parsers[name].add_argument("--out", type=Path, required=True, help="the file to write")
    for name in ("cover", "draw"):
        parsers[name].add_argument("--packages", nargs="+", default=PACKAGES, help="folders of the tree")
    parsers["draw"].add_argument("--coverage", type=Path, required=True, help="the file that `cover` wrote")
    parsers["draw"].add_argument("--seed", type=int, required=True)
    parsers["draw"].add_argument("--count", type=int, default=100)
    parsers["draw"].add_argument(
        "--tests", type=int, default=MAX_TESTS, help="tests of a mutant at most, the fastest first"
    )
    parsers["run"].add_argument("--mutants", type=Path, required=True, help="the file that `draw` wrote")
    parsers["run"].add_argument(
        "--renames",
        type=Path,
        help='{"modules": {old: new}, "names": {old: new}, "tests": {old: new}}, see mutation/finding.py',
    )
    parsers["run"].add_argument("--processes", type=int, default=1)
    parsers["compare"].add_argument("before", type=Path)
    parsers["compare"].add_argument("after", type=Path)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the four commands; returns the exit status."""
    args = _arguments(argv)
    match args.command:
        case "cover":
            cover(args.tree, args.packages, args.out)
        case "draw":
            drawn = draw(
                args.tree, args.packages, args.coverage, seed=args.seed, count=args.count, tests=args.tests
            )
            args.out.write_text(json.dumps(drawn, indent=1) + "\n", encoding="utf-8")
            print(f"{len(drawn['mutants'])} mutants of {drawn['places']} places: {args.out}")
        case "run":
            renames = json.loads(args.renames.read_text(encoding="utf-8")) if args.renames else {}
            return 0 if run(args.tree, args.mutants, args.out, Renames(**renames), args.processes) else 1
        case "compare":
            return 0 if compare(read_verdicts(args.before), read_verdicts(args.after)) else 1
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the sessions and removes the copies
    try:
        sys.exit(main())
    except (SessionError, ValueError, OSError) as error:
        sys.exit(f"error: {error}")
