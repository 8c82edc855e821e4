"""Reads a file of redirects, which are pairs of titles: the first title redirects to the second.

A line is `from<TAB>to` (.tsv) or {"from": ..., "to": ...} (.jsonl), each plain or .gz. A Wikipedia has more
redirects than pages, so the pairs are yielded one by one, and the caller keeps only those that it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from rag_r1.corpus.reader import parsed_lines
from rag_r1.data.files.bad_rows import BadRows
from rag_r1.io.bounded_json import read_json_line
from rag_r1.io.errors import DataError, reason_of

_SUFFIXES = (".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz")
#: Most bytes of a line, far more than two titles have: MediaWiki limits a title to 255 bytes.
_MAX_LINE_BYTES = 2**16


def read_redirects(path: Path, bad: BadRows, *, progress: bool = True) -> Iterator[tuple[str, str]]:
    """Yield the pairs (from, to) of a file, and add lines that are not a pair to `bad`. Raises DataError if
    the file cannot be read."""
    if path.exists() and not path.name.lower().endswith(_SUFFIXES):
        raise DataError(f"--redirects {path}: the name must end in one of {', '.join(_SUFFIXES)}")
    parse = _pair_of_json if path.name.lower().endswith((".jsonl", ".jsonl.gz")) else _pair_of_tsv
    try:
        size = path.stat().st_size
        doing = "reading redirects"
        with tqdm(total=size, unit="B", unit_scale=True, desc=doing, disable=not progress) as bar:
            lines = parsed_lines(path, parse, lambda n_bytes: bar.update(n_bytes - bar.n), _MAX_LINE_BYTES)
            for pair, position in lines:
                if isinstance(pair, ValueError):
                    bad.add(f"{path}, line {position.row}", str(pair)[:100])
                else:
                    yield pair
    except OSError as error:
        raise DataError(
            f"--redirects {path}: cannot be read ({reason_of(error)}): give another file"
        ) from error


def check_redirects(path: Path, skip_bad_rows: bool) -> None:
    """Read a file up to its first pair as a check. Raises DataError if the file cannot be read or, unless
    `skip_bad_rows` says to leave such lines out, if a line before is not a pair."""
    bad = BadRows()
    next(read_redirects(path, bad, progress=False), None)
    bad.refuse(skip_bad_rows, "nothing was written")


def _pair_of_tsv(line: str) -> tuple[str, str]:
    """Parse a line of a .tsv file. Raises ValueError if it is not a pair."""
    cells = [cell.strip() for cell in line.split("\t")]
    if len(cells) != 2 or not all(cells):
        raise ValueError("not from<TAB>to")
    return cells[0], cells[1]


def _pair_of_json(line: str) -> tuple[str, str]:
    """Parse a line of a .jsonl file. Raises ValueError if it is not a pair."""
    try:
        row = read_json_line(line)
    except RecursionError as error:
        raise ValueError(str(error)) from None
    pair = (row.get("from"), row.get("to")) if isinstance(row, dict) else (None, None)
    if not all(isinstance(title, str) and title.strip() for title in pair):
        raise ValueError('not {"from": title, "to": title}')
    return pair[0].strip(), pair[1].strip()
