"""Lists the OpenMP runtimes that a retrieval server has loaded, and the number of threads of each.

    python benchmarks/openmp_runtimes.py --index indexes/wiki
    python benchmarks/openmp_runtimes.py --index indexes/wiki --encode-threads-alone 1
    python benchmarks/openmp_runtimes.py --pid 12345

With `--index` the script opens the index in this process as the server does, with the server's options, and
encodes and searches one question and a batch in a thread, as in the server. Then it prints the encoder's
numbers of threads and, if threadpoolctl is installed, every library with a thread pool. (The search uses its
own threads, each of which calls FAISS with one thread.) With `--pid` it lists the runtimes of a running
server, without their settings. Linux only.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

# This folder has its own retrieval_server.py: look for packages in the project's root instead.
_here = Path(__file__).resolve().parent
sys.path[:] = [str(_here.parent)] + [entry for entry in sys.path if Path(entry).resolve() != _here]

from pydantic import model_validator  # noqa: E402

from retrieval_server.command_line import parse  # noqa: E402
from retrieval_server.options import Flag, Options  # noqa: E402
from retrieval_server.search.options import OpenOptions  # noqa: E402

_BATCH = 16


class Command(Options):
    """The options of this script: an index or a server, and the server's options for opening an index."""

    index: Annotated[Path | None, Flag("a dense index folder, opened in this process", metavar="DIR")] = None
    pid: Annotated[int | None, Flag("a running server", metavar="PID")] = None
    opening: OpenOptions = OpenOptions()

    @model_validator(mode="after")
    def _index_or_pid(self) -> Command:
        if (self.index is None) == (self.pid is None):
            raise ValueError("give either --index DIR or --pid PID")
        return self


def use(command: Command) -> dict[str, int]:
    """Open the index and search for one question and for a batch; returns the threads of torch in each case.

    The result is empty if torch is not loaded. Raises UserError if the index cannot be opened.
    """
    from retrieval_server.encode.cpu_settings import set_mkl_reproducible, set_passive_wait

    set_passive_wait()
    set_mkl_reproducible()

    from retrieval_server.search.index_source import IndexSource

    source = IndexSource.open(command.index, options=command.opening)
    threads = {}

    def work() -> None:
        for label, size in (("one query", 1), ("a batch", _BATCH)):
            prepared = source.prepare([f"What is number {i}?" for i in range(size)])
            source.find(prepared, [3] * size)
            if "torch" in sys.modules:  # a BM25 index does not load it
                import torch

                threads[f"torch, {label}"] = torch.get_num_threads()

    with ThreadPoolExecutor(1) as stage:
        stage.submit(work).result()
    return threads


def report(threads: dict[str, int]) -> None:
    """Print the numbers of threads of the libraries in this process."""
    for name, count in sorted(threads.items()):
        print(f"{name}: {count} threads")
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        print("threadpoolctl is not installed (pip install threadpoolctl): no settings of each runtime")
        return
    for library in threadpool_info():
        print(f"{library['user_api']} {library['num_threads']} threads: {library['filepath']}")


def main(argv: list[str] | None = None) -> int:
    """Run the script and print its findings; returns the exit status."""
    command = parse(Command, __doc__, argv)
    from retrieval_server.errors import UserError
    from retrieval_server.search.openmp import openmp_runtimes

    try:
        threads = use(command) if command.index is not None else {}
        runtimes = openmp_runtimes("self" if command.pid is None else command.pid)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{len(runtimes)} OpenMP runtimes are loaded" + ("" if len(runtimes) != 1 else ": no conflict"))
    for path in runtimes:
        print(f"  {path}")
    tasks = Path(f"/proc/{command.pid or 'self'}/task")
    print(f"{sum(1 for _ in tasks.iterdir())} threads in the process")
    if command.index is not None:
        report(threads)
    return 0


if __name__ == "__main__":
    sys.exit(main())
