"""Collects the text of missing pages from data files that contain it: HotpotQA, 2WikiMultihopQA, MuSiQue.

The written file can be passed to `rag-r1 corpus check --supply`, which adds its passages to the corpus.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from rag_r1.corpus.evidence import COLUMNS, paragraphs_of
from rag_r1.corpus.questions import has_verl_columns
from rag_r1.data.files.row_files import open_rows
from rag_r1.io.atomic_files import write_json_lines
from rag_r1.protocols.actions import has_lone_surrogate


def write_supply(data: Sequence[Path], titles: Collection[str], out: Path) -> int:
    """Write the paragraphs with these titles, one {"title", "text"} per line and each only once. Returns
    their number."""
    rows = ({"title": title, "text": text} for title, text in _paragraphs(data, frozenset(titles)))
    return write_json_lines(out, rows, durable=True)


def _paragraphs(data: Sequence[Path], titles: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield (title, text) of the paragraphs with these titles, each once. Files in veRL's layout are skipped,
    because they contain no paragraphs."""
    digests: set[bytes] = set()
    for path in data:
        if not titles or has_verl_columns(path):
            continue
        with open_rows(path, COLUMNS, COLUMNS) as (_, rows):
            for _, row in rows:
                for title, text in paragraphs_of(row) if isinstance(row, dict) else ():
                    digest = hashlib.sha256(f"{title}\n{text}".encode("utf-8", "replace")).digest()[:12]
                    if title in titles and digest not in digests and not has_lone_surrogate(title + text):
                        digests.add(digest)
                        yield title, text
