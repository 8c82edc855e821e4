"""Builds an index folder from a corpus, for `rag-r1 index serve`.

    rag-r1 index build --corpus corpus.jsonl.gz --out indexes/bm25 --backend bm25
    rag-r1 index build --corpus corpus.jsonl --out indexes/e5 --backend dense \\
        --encoder intfloat/e5-base-v2

The corpus is JSONL with {"id", "contents"} or {"id", "title", "text"} on each line, parquet with such
columns, or RAG-R1's tsv, "id<TAB>title   text"; plain or .gz, one file, several, or a folder. A dense build
that was interrupted continues where it stopped when the same command is given again.

The passages of a large dense index can be encoded in parts, by several processes or machines; a part that was
interrupted continues in the same way:

    rag-r1 index build passages --corpus wiki/ --parts work
    rag-r1 index build encode --parts work --part 1/8 --encoder intfloat/e5-base-v2
    rag-r1 index build merge --parts work --out indexes/e5

A dense index is exact unless a preset says otherwise: small takes a Wikipedia of 29 million passages of 768
dimensions into 4 GB of memory and scores candidates from disk. The build first prints what it will need:

    rag-r1 index build --corpus corpus.jsonl --out indexes/e5 --backend dense \\
        --encoder intfloat/e5-base-v2 --preset small

An index or vectors built elsewhere become an index folder, with their corpus and encoder:

    rag-r1 index import --faiss e5_Flat.index --corpus wiki-18.jsonl \\
        --encoder intfloat/e5-base-v2 --out indexes/wiki-18

Two indexes of one corpus can be searched together:

    rag-r1 index build --backend hybrid --of indexes/bm25 --of indexes/e5 \\
        --out indexes/both

All options and files are checked before the work, and all problems are reported together. Then an encoder
that is named by its Hub name is fetched, and the step runs. --check-only stops before the step.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retrieval_server.folder.manifest import Manifest

# Run as a script: find the package beside this file, and let no module here shadow one from elsewhere.
# Each script does this itself, since it can import nothing of the package before.
if __package__ in (None, ""):
    _here = Path(__file__).resolve().parent
    sys.path[:] = [str(_here.parent)] + [p for p in sys.path if Path(p).resolve() != _here]

from retrieval_server.build_options import BuildCommand
from retrieval_server.command_line import parse
from retrieval_server.encode.cpu_settings import set_mkl_reproducible
from retrieval_server.encode.model_folder import is_hub_name, resolve_model
from retrieval_server.errors import UserError, check_all, disk_errors
from retrieval_server.extras import INDEX, MODEL, require_packages

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None, prog: str = "rag-r1 index build") -> int:
    """Build an index, or run one step of it, by a command line. Returns the exit status."""
    return run(parse(BuildCommand, __doc__, argv, prog, check=check))


def run(command: BuildCommand) -> int:
    """Run the step that the options name. Returns the exit status."""
    logging.basicConfig(level="WARNING", format="%(levelname)s: %(message)s")
    set_mkl_reproducible()  # so that a resumed build writes the same bytes as an uninterrupted one
    if unused := command.unused_flags():
        kind = command.step if command.step != "all" else f"--backend {command.backend}"
        log.warning("%s: no effect with %s; leave them out", ", ".join(unused), kind)
    try:
        check(command)
        name = command.dense.encoder
        if name and is_hub_name(name) and command.step != "merge":  # a merge may not need its encoder
            resolve_model(name)  # fetches it: with --check-only too, since only that shows whether it exists
        if command.check_only:
            print(f"all checks passed: would write {command.target}")
            return 0
        with disk_errors(command.target):
            if command.backend == "hybrid":
                _build_hybrid(command)
            else:
                _STEPS[command.step](command)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def check(command: BuildCommand) -> None:
    """Raise UserError, or UserErrors, with all problems on this machine."""
    with disk_errors(command.target):  # a file may not be readable
        check_all(*filter(_has_arguments, _checks(command)))


def _has_arguments(check: Callable[[], object]) -> bool:
    """Return whether a check has all its arguments.

    An argument is None if its option is missing, which `BuildCommand.contradictions` reports.
    """
    return not isinstance(check, partial) or None not in check.args


def _checks(command: BuildCommand) -> Iterator[Callable[[], object]]:
    """Yield the checks that a command needs, to be run before the work. Each raises UserError."""
    from retrieval_server.indexing import checks, parts

    if command.backend == "hybrid":
        yield from checks.hybrid_checks(command.hybrid.of, command.out, command.overwrite)
    elif command.step == "all":
        yield from checks.build_checks(command.build_options())
    elif command.step == "import":
        imported = command.imported
        yield from checks.import_checks(command.build_options(), imported.faiss, imported.embeddings or ())
    elif command.step == "passages":
        yield partial(parts.refuse_prepared, command.parts)
        yield from checks.corpus_checks(command.corpus or (), command.skip_bad_rows)
    else:
        yield partial(parts.open_corpus, command.parts)
        if command.step == "encode":
            yield partial(parts.EncodingPart.parse, command.part)
            yield partial(require_packages, "Encoding", "retrieval", MODEL)
            yield partial(checks.check_encoder, command.dense.encoder, command.encoding)
        else:
            yield partial(checks.check_target, command.out, overwrite=command.overwrite)
            yield partial(require_packages, "A dense index", "retrieval", INDEX)


# Each step imports the modules that it needs, so that `--help` and the other steps do not need them. The
# assertions are for type checkers: `BuildCommand.contradictions` has refused a step that lacks an option.


def _build_hybrid(command: BuildCommand) -> None:
    """Make a hybrid of the indexes in --of, and print the command that serves it."""
    from retrieval_server.indexing.builder import build_hybrid

    assert command.out is not None
    hybrid = command.hybrid
    manifest = build_hybrid(
        hybrid.of, command.out, k=hybrid.rrf_k, depth=hybrid.depth, overwrite=command.overwrite
    )
    _print_serve_command(command.out, manifest)


def _build_index(command: BuildCommand) -> None:
    """Build an index from a corpus, and print the command that serves it."""
    from retrieval_server.indexing.builder import build_index

    options = command.build_options()
    _print_serve_command(options.out, build_index(options))


def _merge_parts(command: BuildCommand) -> None:
    """Build an index from the encoded parts, and print the command that serves it."""
    from retrieval_server.indexing.builder import merge_parts

    assert command.parts is not None
    options = command.build_options()
    _print_serve_command(options.out, merge_parts(options, command.parts))


def _import_index(command: BuildCommand) -> None:
    """Import an index or vectors, and print the command that serves it."""
    from retrieval_server.indexing.index_import import import_index

    options = command.build_options()
    imported = command.imported
    manifest = import_index(
        options, faiss_file=imported.faiss, embeddings=imported.embeddings or (), trust=imported.trust
    )
    _print_serve_command(options.out, manifest)


def _prepare_passages(command: BuildCommand) -> None:
    """Write the text of the corpus into --parts, and print the command of the next step."""
    from retrieval_server.folder.corpus import CorpusReader
    from retrieval_server.indexing.parts import prepare_corpus

    assert command.corpus is not None and command.parts is not None
    reader = CorpusReader(command.corpus, skip_bad_rows=command.skip_bad_rows)
    record = prepare_corpus(reader, command.parts)
    skipped = _skipped_text(record.corpus.skipped_rows)
    print(f"{command.parts}: {record.count} passages{skipped}. Encode them with:")
    print(f"rag-r1 index build encode --parts {quote(str(command.parts))} --part 1/N --encoder NAME")


def _encode_part(command: BuildCommand) -> None:
    """Encode one part of the passages, and print the command of the next step."""
    from retrieval_server.encode.encoder import Encoder
    from retrieval_server.indexing.parts import EncodingPart, encode_part
    from retrieval_server.indexing.presets import row_type

    dense, parts = command.dense, command.parts
    assert parts is not None and command.part is not None and dense.encoder is not None
    part = EncodingPart.parse(command.part)
    encoder = Encoder.create(dense.encoder, command.encoding, dense.device, dense.dtype, dense.openvino)
    record = encode_part(
        parts, part, encoder, kind=row_type(dense), batch_size=dense.batch_size, overwrite=command.overwrite
    )
    count = record.stop - record.start
    print(f"part {part}: {count} passages are encoded. When all parts are, continue with:")
    preset = f" --preset {dense.preset}" if dense.preset else ""
    print(f"rag-r1 index build merge --parts {quote(str(parts))} --out DIR{preset}")


def _print_serve_command(out: Path, manifest: Manifest) -> None:
    """Print the number of passages of an index, and the command that serves it."""
    print(f"{out}: {manifest.count} passages{_skipped_text(manifest.corpus.skipped_rows)}. Serve it with:")
    print(f"rag-r1 index serve --index {quote(str(out))}")


def _skipped_text(rows: int) -> str:
    """Return the part of a message about malformed rows that were skipped; empty without any."""
    return f", {rows} malformed rows skipped" if rows else ""


#: Step -> its function. A hybrid has none of these steps (`run`).
_STEPS = {
    "all": _build_index,
    "passages": _prepare_passages,
    "encode": _encode_part,
    "merge": _merge_parts,
    "import": _import_index,
}


if __name__ == "__main__":
    sys.exit(main(prog="python retrieval_server/build_index.py"))
