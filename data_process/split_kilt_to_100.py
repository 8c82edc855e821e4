"""Splits KILT's Wikipedia (August 2019, 5.9 million pages) into 29 million passages of 100 words.

    wget http://dl.fbaipublicfiles.com/KILT/kilt_knowledgesource.json
    python -m data_process.split_kilt_to_100 --input kilt_knowledgesource.json --out wiki_kilt_100.jsonl.gz
    rag-r1 index build --corpus wiki_kilt_100.jsonl.gz --out indexes/bm25 --backend bm25

Each line of the input is a page, {"wikipedia_title": text, "text": [paragraph, ...], ...}. Its paragraphs are
joined, the marks "Section::::" and "BULLET::::" are removed, and the text is cut after every hundredth word
(words are separated by white space). This gives the same passages, with the same ids, as RAG-R1's corpus.
Each line of the output is {"id": "0", "contents": "\\"Title\\"\\nwords"}. Input and output are gzipped if
their names end in .gz.

If the command is killed, running it again continues where it stopped and gives the same output, byte for
byte. Lines that are not pages are counted and make the command fail at the end; repeating it with
--skip-bad-rows then finishes at once.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import model_validator
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that the script also runs without installation

from rag_r1.data.files.bad_rows import HELP, BadRows
from rag_r1.data.files.first_rows import check_first_rows
from rag_r1.io.atomic_files import move_into_place
from rag_r1.io.errors import DataError
from rag_r1.io.ordinary_files import open_ordinary
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, Positive, argument, read_arguments
from rag_r1.options.out_folder import check_out_file
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import CHECK_ONLY, StartChecks
from rag_r1.runs.state_file import StateFile

WORDS_PER_PASSAGE = 100
#: Number of pages between two records of progress; after a kill at most this many are split again.
CHECKPOINT_PAGES = 2000
_MARKS = ("BULLET::::", "Section::::")


@dataclass(frozen=True)
class Progress:
    """The progress of a run, which is recorded beside the output."""

    #: Size of the input file, in bytes.
    input_bytes: int
    #: Number of words in a passage.
    words: int
    #: Number of decompressed bytes that were read.
    read: int = 0
    #: Number of lines that were read.
    lines: int = 0
    #: Number of bytes in the output file.
    written: int = 0
    #: Number of passages in the output file.
    passages: int = 0
    #: Lines that are not pages.
    bad: BadRows = field(default_factory=BadRows)


def split_page(line: bytes, words: int = WORDS_PER_PASSAGE) -> Iterator[str]:
    """Yield the contents of a page's passages, in order.

    Raises DataError if the line is not a page.
    """
    try:
        page = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON ({error})") from None
    title = page.get("wikipedia_title") if isinstance(page, dict) else None
    paragraphs = page.get("text") if isinstance(page, dict) else None
    if not isinstance(title, str) or not isinstance(paragraphs, list):
        raise DataError("not a page of KILT: it needs 'wikipedia_title' and a list 'text'")
    if not all(isinstance(paragraph, str) for paragraph in paragraphs):
        raise DataError("'text' must be a list of strings")
    text = " ".join(paragraphs)  # a space, for paragraphs that do not end in KILT's newline
    for mark in _MARKS:
        text = text.replace(mark, "")
    tokens = text.split()
    title = " ".join(title.split())
    for first in range(0, len(tokens), words):
        passage = " ".join(tokens[first : first + words])
        yield f'"{title}"\n{passage}' if title else passage


def split(
    source: Path,
    out: Path,
    *,
    words: int = WORDS_PER_PASSAGE,
    skip_bad_rows: bool = False,
    progress: bool = True,
) -> Progress:
    """Write the passages of all pages to `out`; after a kill, continue the output of the earlier run.

    `words` is the number of words of a passage; `progress` shows a bar. Raises DataError if the input is a
    broken gzip file, or, naming the first bad lines, if it has lines that are not pages and `skip_bad_rows`
    is false. Raises OSError if a file cannot be read or written.
    """
    made_from = {"input_bytes": source.stat().st_size, "words": words}
    part = out.with_name(f"{out.name}.part")
    record = StateFile(out.with_name(f"{out.name}.progress.json"), made_from)
    state = _resume(part, record, Progress(**made_from), skip_bad_rows)
    out.parent.mkdir(parents=True, exist_ok=True)
    with (
        open_ordinary(source) as raw,
        part.open("ab") as target,
        tqdm(total=state.input_bytes, unit="B", unit_scale=True, desc="split", disable=not progress) as bar,
    ):
        target.truncate(state.written)
        stream = _unpacked(raw, source)
        while lines := _next_lines(stream, state.read, source):
            rows, bad = _passage_rows(lines, state, source)
            target.write(_encode(rows, is_gzip=out.name.lower().endswith(".gz")))
            target.flush()
            os.fsync(target.fileno())
            state = replace(
                state,
                read=stream.tell(),
                lines=state.lines + len(lines),
                written=target.tell(),
                passages=state.passages + len(rows),
                bad=state.bad + bad,
            )
            record.write(asdict(state))
            bar.update(raw.tell() - bar.n)
            bar.set_postfix_str(f"{state.passages:,} passages")
    if state.bad.count and not skip_bad_rows:
        raise DataError(state.bad.refusal())
    move_into_place(part, out)
    record.remove()
    return state


def _encode(rows: list[str], is_gzip: bool) -> bytes:
    """Return the rows as bytes of the output file."""
    # A lone surrogate, which JSON can represent and UTF-8 cannot, becomes a question mark.
    data = "".join(row + "\n" for row in rows).encode("utf-8", "replace")
    # Concatenated gzip files are a gzip file. mtime=0: the bytes do not depend on the time.
    return gzip.compress(data, 6, mtime=0) if is_gzip else data


def _passage_rows(lines: list[bytes], state: Progress, source: Path) -> tuple[list[str], BadRows]:
    """Return the output rows of these lines, and the lines that are not pages.

    `state` is the progress before these lines: it determines their numbers and the ids of the passages.
    """
    rows: list[str] = []
    bad = BadRows()
    for number, line in enumerate(lines, start=state.lines + 1):
        if not line.strip():
            continue
        try:
            for contents in split_page(line, state.words):
                row = {"id": str(state.passages + len(rows)), "contents": contents}
                rows.append(json.dumps(row, ensure_ascii=False))
        except DataError as error:
            bad.add(f"{source}, line {number}", error)
    return rows, bad


def _unpacked(raw: BinaryIO, source: Path) -> BinaryIO:
    """Return the stream of the file's text, which is decompressed if the file's name ends in .gz."""
    return gzip.open(raw) if source.name.lower().endswith(".gz") else raw


def _next_lines(stream: BinaryIO, start: int, source: Path) -> list[bytes]:
    """Return the lines from the byte `start` up to the next checkpoint, or [] at the end of the input.

    A gzip file is unpacked from its beginning if `start` is not the current position. Raises DataError if it
    is broken.
    """
    try:
        stream.seek(start)
        return list(islice(iter(stream.readline, b""), CHECKPOINT_PAGES))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{source} is a broken gzip file ({error}): fetch it again") from error


def _resume(part: Path, record: StateFile, initial: Progress, skip_bad_rows: bool) -> Progress:
    """Return the recorded progress of an earlier run with the same input and words, or `initial` without one.

    A run with bad lines that may not be skipped also starts again, since the lines may have been repaired.
    """

    def parse(content: dict[str, Any]) -> Progress | None:
        state = Progress(**{**content, "bad": BadRows(**content["bad"])})
        is_usable = skip_bad_rows or not state.bad.count
        return state if is_usable and part.stat().st_size >= state.written else None

    return record.read(parse) or initial


class KiltArguments(Arguments):
    """Input, output and size of the passages."""

    input: Path = argument("KILT's file kilt_knowledgesource.json", "FILE")
    out: Path = argument("file of the passages, .jsonl or .jsonl.gz", "FILE")
    words: Positive = argument("words per passage", default=WORDS_PER_PASSAGE)
    skip_bad_rows: bool = argument(HELP, default=False)
    overwrite: bool = argument("replace --out if it exists", default=False)
    check_only: bool = argument(CHECK_ONLY, default=False)

    @model_validator(mode="after")
    def _is_named_as_its_format(self) -> KiltArguments:
        if not self.out.name.lower().endswith((".jsonl", ".jsonl.gz")):
            raise ValueError(f"--out {self.out}: the name must end in .jsonl or .jsonl.gz")
        return self


@command_main(DataError, RunError, OSError)
def main(arguments: list[str] | None = None) -> int:
    """Run the script; returns the exit status."""
    args = read_arguments(KiltArguments, arguments, description=__doc__, check=_check_start)
    _check_start(args)
    if args.check_only:
        print(f"all checks passed: the passages of {args.input} would be written to {args.out}")
        return 0
    progress = split(args.input, args.out, words=args.words, skip_bad_rows=args.skip_bad_rows)
    for line in progress.bad.left_out():
        print(line, file=sys.stderr)
    print(f"{args.out}: {progress.passages} passages of {progress.lines} lines")
    return 0


def _check_start(args: KiltArguments) -> None:
    """Raise StartError with all problems of the input and the output."""
    with StartChecks() as checks:
        checks.run(_check_input, args.input)
        checks.run(_check_out, args.out, args.input, args.overwrite)


def _check_out(out: Path, source: Path, overwrite: bool) -> None:
    """Raise ValueError if the output cannot be written, is the input, or exists and may not be replaced."""
    check_out_file(out, inputs=[source])
    if out.exists() and not overwrite:
        raise ValueError(f"--out {out} exists; replace it with --overwrite, or choose another")


def _check_input(path: Path) -> None:
    """Raise DataError unless the input is a file with a page among its first lines."""
    if not path.is_file():
        problem = "is a folder" if path.exists() else "does not exist"
        raise DataError(f"--input {path} {problem}: give KILT's file kilt_knowledgesource.json")
    with open_ordinary(path) as raw:
        lines = enumerate(_next_lines(_unpacked(raw, path), 0, path), 1)
    pages = ((number, line) for number, line in lines if line.strip())
    check_first_rows(path, pages, lambda line: list(split_page(line)))


if __name__ == "__main__":
    sys.exit(main())
