"""Measures the time to read a folder of small files in limited worker processes and in this process.

    python benchmarks/limited_reading.py            # 10,000 files
    python benchmarks/limited_reading.py --files 2000 --rounds 3

Workers and process read the same files with the same code (rag_r1/sandbox/documents.py), in turns, after a
round that is not timed. The script prints the seconds of each round, and the ratios of the medians of seconds
and of processor time of all processes. The time includes the start of the workers.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from pathlib import Path

from rag_r1.sandbox import documents
from rag_r1.tools.documents import parsers
from rag_r1.tools.documents.corpus import index_folder

_WORDS = "the tide at Brunn turns twice a day and the ferry leaves at nine from the old harbour wall".split()


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=10_000, help="files to read (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds (default %(default)s)")
    args = parser.parse_args()
    limited = (parsers.file_workers.start, parsers.batch_workers.try_start)
    with tempfile.TemporaryDirectory() as folder:
        print(f"{args.files:,} files: {_write(Path(folder) / 'docs', args.files)}")
        seconds: dict[str, list[float]] = {"in this process": [], "in workers": []}
        processor: dict[str, list[float]] = {name: [] for name in seconds}
        for round_number in range(args.rounds + 1):  # round 0 is not timed
            for name, start in (("in this process", (_LocalJob, _LocalJob)), ("in workers", limited)):
                parsers.file_workers.start, parsers.batch_workers.try_start = start  # type: ignore[assignment, method-assign]
                started, spent = time.perf_counter(), _processor_s()
                out = Path(folder) / f"{name}-{round_number}"
                corpus = index_folder(Path(folder) / "docs", out, progress=False)
                took = time.perf_counter() - started
                if round_number:
                    seconds[name].append(took)
                    processor[name].append(_processor_s() - spent)
                    size = corpus.stat().st_size
                    print(f"round {round_number}, {name}: {took:.2f} s, {size:,} bytes of corpus")
    for unit, measured in (("seconds", seconds), ("seconds of processor time", processor)):
        local, workers = (statistics.median(times) for times in measured.values())
        print(f"median {unit}: {local:.2f} -> {workers:.2f}: {workers / local:.2f} x")


def _processor_s() -> float:
    """Return the processor seconds of this process and of its finished children.

    The workers are among them, since they end when a folder has been read.
    """
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


class _LocalJob:
    """A job with the interface of a worker's, which runs in this process when its result is requested."""

    def __init__(self, job: str, arguments: list, limits: object):
        """`job` is `module:function`, of rag_r1/sandbox/documents.py; `limits` are not used."""
        self._job, self._arguments = getattr(documents, job.partition(":")[2]), arguments

    def result(self) -> list:
        return self._job(*self._arguments)

    def cancel(self) -> None:
        pass


def _write(folder: Path, files: int) -> str:
    """Write text, Markdown, HTML and PDF files of 40 to 400 words, and return their numbers as a text."""
    folder.mkdir()
    counts = dict.fromkeys((".txt", ".md", ".html", ".pdf"), 0)
    for index in range(files):
        ending = list(counts)[index % 4]
        counts[ending] += 1
        text = " ".join(_WORDS[(index + i) % len(_WORDS)] for i in range(40 + index % 361))
        lines = [text[i : i + 90] for i in range(0, len(text), 90)]
        path = folder / f"{index:06}{ending}"
        if ending == ".pdf":
            path.write_bytes(_pdf(lines))
        elif ending == ".html":
            head = f"<!doctype html><html><head><title>Page {index}</title></head><body><h1>Tides</h1>"
            path.write_text(head + "".join(f"<p>{line}</p>\n" for line in lines) + "</body></html>")
        else:
            path.write_text((f"# Note {index}\n\n" if ending == ".md" else "") + "\n".join(lines))
    return ", ".join(f"{count:,} {ending}" for ending, count in counts.items())


def _pdf(lines: list[str]) -> bytes:
    """Return a PDF with one page of these lines."""
    stream = "BT /F1 9 Tf 20 780 Td 11 TL " + " ".join(f"({line}) Tj T*" for line in lines) + " ET"
    objects = [
        b"<</Type /Catalog /Pages 2 0 R>>",
        b"<</Type /Pages /Kids [3 0 R] /Count 1>>",
        b"<</Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 4 0 R "
        b"/Resources <</Font <</F1 5 0 R>>>>>>",
        b"<</Length %d>>\nstream\n%s\nendstream" % (len(stream), stream.encode()),
        b"<</Type /Font /Subtype /Type1 /BaseFont /Helvetica>>",
    ]
    out, table = b"%PDF-1.4\n", b"0000000000 65535 f \n"
    for number, text in enumerate(objects, 1):
        table += b"%010d 00000 n \n" % len(out)
        out += b"%d 0 obj\n%s\nendobj\n" % (number, text)
    end = b"trailer\n<</Size %d /Root 1 0 R>>\nstartxref\n%d\n%%%%EOF"
    return out + b"xref\n0 %d\n%s" % (len(objects) + 1, table) + end % (len(objects) + 1, len(out))


if __name__ == "__main__":
    main()
