"""`rag-r1 doctor`: checks that everything a training needs is installed.

Every check is a small function that yields `Finding`s (findings.py), each with what was checked, its state
and, if that is not ok, the remedy. packages.py checks the installed packages, registration.py our
registrations in veRL, hardware.py the machine, and this module a retrieval server. A training can start in
spite of warnings. If anything is missing, it cannot, and the exit status is 1. The scripts in the root of the
repository run this command first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence

from rag_r1.io.terminal_text import terminal_lines
from rag_r1.options.arguments.parser import CommandParser
from rag_r1.options.command_exit import command_main
from rag_r1.options.problems import PreflightReport
from rag_r1.options.server_address import AN_ADDRESS, is_server_address
from rag_r1.system.installation import setup_command, version_of
from rag_r1.training.doctor.findings import MISSING, WARNING, Finding, ok
from rag_r1.training.doctor.hardware import check_driver, check_gpu, check_memory, check_ray
from rag_r1.training.doctor.packages import check_trl, check_versions
from rag_r1.training.doctor.registration import check_registration


def check_retriever(url: str | None) -> Iterator[Finding]:
    """Check that the retrieval server answers a search. Without an address, only says that this was not
    checked."""
    if not url:
        yield ok("retriever", "not checked (--retriever URL or $RETRIEVER_URL)")
        return
    if not is_server_address(url):
        text = "the address in --retriever or $RETRIEVER_URL cannot be used"
        yield Finding("retriever", MISSING, text, f"give {AN_ADDRESS}")
        return
    try:
        from omegaconf import OmegaConf

        from rag_r1.training.preflight import retriever
    except ModuleNotFoundError as error:
        yield Finding("retriever", WARNING, f"not checked: {error.name} is not installed", setup_command())
        return

    report = PreflightReport()
    config = {"rag_r1": {"retriever": {"url": url, "timeout_s": 10.0, "retries": 0}}}
    retriever.check_retriever(OmegaConf.create(config), report)
    for problem in report.problems:
        state = MISSING if problem in report.errors else WARNING
        where = "--retriever" if problem.where == retriever.KEY else problem.where
        yield Finding("retriever", state, f"{where}: {problem.what}", problem.remedy)
    for note in report.notes:
        yield ok("retriever", note)


def find_all(retriever: str | None) -> Iterator[Finding]:
    """Yield all findings, in the order in which they should be acted on."""
    yield from check_driver()
    yield from check_versions()
    yield from check_trl()
    if version_of("torch"):
        if version_of("verl"):
            yield from check_registration()
        yield from check_gpu()
    if version_of("psutil"):
        yield from check_memory()
    yield from check_ray()
    yield from check_retriever(retriever)


@command_main()
def main(arguments: Sequence[str] | None = None) -> int:
    """Print the findings. Returns 1 if anything is missing, else 0."""
    parser = CommandParser(
        prog="rag-r1 doctor",
        description="Check the installation: versions, the platform, what is registered with veRL, memory and"
        " the retrieval server. If something is missing, the status is 1, and the output says what to do.",
    )
    parser.add_argument(
        "--retriever",
        metavar="URL",
        default=os.environ.get("RETRIEVER_URL"),
        help="a retrieval server that should answer, e.g. http://127.0.0.1:8000 (default: $RETRIEVER_URL)",
    )
    args = parser.parse_args(arguments)
    missing = 0
    for finding in find_all(args.retriever):
        print(terminal_lines(str(finding)), flush=True)
        missing += finding.state == MISSING
    print(f"\n{missing} missing: follow the arrows above" if missing else "\nnothing is missing")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
