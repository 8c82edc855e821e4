"""`rag-r1 view`: shows the trajectories of runs in a browser.

    rag-r1 view outputs/rag-r1/grpo-mq
    rag-r1 view evals/before evals/after --port 8200
    rag-r1 view outputs/rag-r1/grpo-mq --export page.html --select 'right=false&step_min=100'

Runs may be finished or still running; records that are appended usually appear within two seconds
(watcher.py). The records that have been read are kept in a cache (cache.py), so that the next start is fast.
With `--export` the command writes a static page instead of starting a server.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from pydantic import model_validator
from pydantic_settings import CliPositionalArg

from rag_r1.explorer.record_files.sources import Sources
from rag_r1.http_server.access_token import read_token, take_token, warn_without_token
from rag_r1.http_server.listening import bind_socket, check_port, server_names, server_url
from rag_r1.http_server.stop_signals import signals_ignored
from rag_r1.io.atomic_files import write_text
from rag_r1.io.errors import DataError
from rag_r1.io.terminal_text import terminal_text
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, Filled, HostName, Port, argument, read_arguments
from rag_r1.options.out_folder import check_out_file
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import CHECK_ONLY, StartChecks, check_packages

if TYPE_CHECKING:
    from rag_r1.explorer.store import Store

COMMAND = "rag-r1 view"
_DESCRIPTION = """\
Show the trajectories of runs in a browser: what was searched, found and answered, filters, causes of wrong
answers, two runs side by side, curves over the steps. PATH is the folder of a run (of train, eval, traces,
filter, ...), a folder with several runs, or a file of records; a run may still go on.

examples:
  rag-r1 view outputs/rag-r1/grpo-mq                    then open http://127.0.0.1:8090
  rag-r1 view evals/before evals/after
  rag-r1 view evals/after --export failures.html --select 'cause=retrieved_and_misread'
"""
_EPILOG = """\
environment: VIEW_TOKEN, if set, is required of browsers as 'Authorization: Bearer'. XDG_CACHE_HOME (default
~/.cache) is where rag-r1/explorer keeps what was read; it may be deleted at any time.
"""
#: The environment variable with the token that clients must send.
TOKEN_VARIABLE = "VIEW_TOKEN"
#: The first bytes of a page of --export.
_PAGE_START = b"<!doctype html>"
#: Seconds that running requests have when the server is stopped.
_STOP_S = 3


class ViewArguments(Arguments):
    """The arguments of `rag-r1 view`."""

    paths: CliPositionalArg[list[Path]] = argument("run folder, folder of runs, or file of records", "PATH")
    host: Filled = argument(
        "address to listen on; 127.0.0.1: this machine only; 0.0.0.0: the whole network", default="127.0.0.1"
    )
    port: Port = argument("port to listen on; 0: a free one", default=8090)
    export: Path | None = argument(
        "write a static page of the selected trajectories (500 at most) to this file, and end",
        "FILE",
        default=None,
    )
    select: str = argument(
        "the trajectories of --export, by filters as in the page's address: 'right=false&cause=cut'",
        "FILTERS",
        default="",
    )
    allowed_host: list[HostName] = argument(
        "further name under which browsers reach this server, such as that of a proxy; may be repeated",
        "NAME",
        default=[],
    )
    check_only: bool = argument(CHECK_ONLY, default=False)

    @model_validator(mode="after")
    def _flags_fit_mode(self) -> ViewArguments:
        """Raise ValueError for flags that have no effect with or without --export."""
        if self.select and self.export is None:
            raise ValueError("--select needs --export FILE; in the browser, filter on the page")
        served = [flag for flag in ("host", "port", "allowed_host") if flag in self.model_fields_set]
        if served and self.export is not None:
            flags = ", ".join(f"--{flag.replace('_', '-')}" for flag in served)
            raise ValueError(f"--export does not start a server: leave out {flags}")
        return self


@command_main(RunError, DataError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run `rag-r1 view`; returns 0, or 1 with a message after an error."""
    args = read_arguments(
        ViewArguments, arguments, prog=COMMAND, description=_DESCRIPTION, epilog=_EPILOG, check=_check_start
    )
    _check_start(args)
    for path in (path for path in args.paths if not Sources([path]).files()):
        print(f"note: no records in {path} yet: wait, or give another run's folder", file=sys.stderr)
    if args.check_only:
        print(f"all checks passed: {', '.join(map(str, args.paths))} would be shown")
        return 0
    return _serve(args) if args.export is None else _export(args, args.export)


def _check_start(args: ViewArguments) -> None:
    """Raise StartError with all problems of the arguments, and of the token that they need."""
    with StartChecks() as checks:
        modules = ("uvicorn", "fastapi") if args.export is None else ()
        checks.run(check_packages, COMMAND, "duckdb", *modules)
        for path in args.paths:
            checks.run(_check_path, path)
        if args.export is not None:
            checks.run(check_out_file, args.export, "--export", begin=_PAGE_START, owner=COMMAND)
            checks.run(_check_records, args.paths)
            filters = parse_qsl(args.select, keep_blank_values=True)
            for name in dict.fromkeys(name for name, _ in filters):
                checks.run(_check_filter, [item for item in filters if item[0] == name])
        else:
            checks.run(check_port, args.host, args.port)
            checks.run(read_token, TOKEN_VARIABLE)


def _check_path(path: Path) -> None:
    """Raise RunError if a path does not exist or is not UTF-8, or is a file without records."""
    if not path.exists():
        raise RunError(f"{path}: there is no such file or folder: correct the path")
    if any("\ud800" <= character <= "\udfff" for character in str(path.resolve())):
        raise RunError(f"{path.resolve()}: it is not UTF-8, so it cannot be stored or shown: rename it")
    is_empty = path.is_file() and not path.stat().st_size
    if not (path.is_dir() or is_empty or Sources([path]).is_record_file(path)):
        raise RunError(
            f"{path}: its first line is not a trajectory record: give a run's folder, or a file of its "
            "trajectories"
        )


def _check_records(paths: Sequence[Path]) -> None:
    """Raise RunError if no path, all of which exist, has records."""
    if all(path.exists() for path in paths) and not Sources(paths).files():
        raise _no_trajectories(paths)


def _no_trajectories(paths: Sequence[Path]) -> RunError:
    """Return the error about paths whose records cannot be exported, since there are none."""
    return RunError(f"no trajectories in {', '.join(map(str, paths))}: give a run's folder")


def _check_filter(items: Sequence[tuple[str, str]]) -> None:
    """Raise RunError if a filter of --select, given as (name, value), cannot be used."""
    from rag_r1.evaluation.failure_causes import CAUSES
    from rag_r1.explorer.filters import FilterError, selection_of

    try:
        causes = (*CAUSES, "none")
        if unknown := [value for name, value in items if name == "cause" and value not in causes]:
            raise FilterError(f"cause: must be one of {', '.join(causes)}, not {unknown[0][:50]!r}")
        selection_of(items)
    except FilterError as error:
        raise RunError(f"--select: {error}") from error


def _export(args: ViewArguments, out: Path) -> int:
    """Write the static page to the file `out`; returns 0. Raises RunError if nothing can be selected, or the
    cache cannot be used."""
    # Imported in functions, because they need optional packages, and `--help` must work without them.
    from rag_r1.explorer.export import export_page, select_trajectories
    from rag_r1.explorer.filters import FilterError, selection_of

    try:
        selection = selection_of(parse_qsl(args.select, keep_blank_values=True))
        with _open_store(args.paths) as store:
            store.refresh()
            states = store.files()
            with store.cache.connection() as connection:
                tids, total = select_trajectories(connection, selection)
                if not total and not args.select:
                    raise _no_trajectories(args.paths)
                out.absolute().parent.mkdir(parents=True, exist_ok=True)
                write_text(out, export_page(connection, store.title, tids), private=True)
    except FilterError as error:
        raise RunError(f"--select: {error}") from error
    if broken := sum(state.broken for state in states):
        faults = [fault for state in states for fault in state.faults]
        lines = "1 broken line" if broken == 1 else f"{broken} broken lines"
        print(terminal_text(f"warning: left out: {lines}; the first: {faults[0]}", 1000), file=sys.stderr)
    if total > len(tids):
        print(f"warning: the page has the first {len(tids)} of {total} selected ones", file=sys.stderr)
    print(f"{len(tids)} trajectories: {out}")
    return 0


@contextmanager
def _open_store(paths: Sequence[Path]) -> Iterator[Store]:
    """Open the records below some paths, and close them after the block. Raises RunError if their cache is
    broken, or its disk is full."""
    import duckdb

    from rag_r1.explorer.cache import cache_folder, is_broken
    from rag_r1.explorer.store import Store

    try:
        with closing(Store(paths)) as store:
            yield store
    except duckdb.Error as error:
        if not is_broken(error):
            raise
        text = f"the cache in {cache_folder()} cannot be used ({error}): make room there, or delete it"
        raise RunError(text) from error


def _serve(args: ViewArguments) -> int:
    """Serve the explorer until a signal; returns 0. Raises RunError if the cache cannot be opened."""
    import uvicorn

    from rag_r1.explorer.app import create_app
    from rag_r1.http_server.idle_timeout import uvicorn_config

    token = take_token(TOKEN_VARIABLE)
    warn_without_token(args.host, token, TOKEN_VARIABLE)
    with bind_socket(args.host, args.port) as listener:
        host, port = listener.getsockname()[:2]
        with _open_store(args.paths) as store:
            names = server_names(host)
            app = create_app(store, names=names, allowed=args.allowed_host, token=token)
            print(f"trajectories at {server_url(host, port)}", flush=True)
            server = uvicorn.Server(uvicorn_config(app, stop_s=_STOP_S, lifespan="on"))
            with signals_ignored():
                server.run(sockets=[listener])
    return 0


if __name__ == "__main__":
    sys.exit(main())
