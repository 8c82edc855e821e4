"""One pass over a corpus: what is found, and that a scan that was killed finds the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_r1.corpus.answer_matcher import AnswerMatcher
from rag_r1.corpus.reader import Corpus
from rag_r1.corpus.scan import ScanResult, ScanTargets, scan_corpus
from rag_r1.corpus.title_index import TitleIndex

ROOT = Path(__file__).parents[2]
NAMES = ("Ulm", "ulm", "New_York", "Heat (film)", "Danube")


def corpus_of(path: Path, n: int) -> Corpus:
    """Passages with ids 0, 1, ..., titles in turn, and a bad row after every fifth."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(n):
            title = NAMES[number % len(NAMES)]
            row = {"id": str(number), "contents": f'"{title}"\nText {number} is of {title}.'}
            file.write(json.dumps(row) + "\n" + ("[]\n" if number % 5 == 4 else ""))
    return Corpus([path])


def wanted(*ids: str, probe: tuple[str, ...] = ()) -> ScanTargets:
    titles = TitleIndex(["Ulm", "New York", "Heat", "Rome"])
    answers = AnswerMatcher(["Danube", "text 3", "of Heat film", "nobody"])
    return ScanTargets(frozenset(ids), titles, answers, frozenset(probe))


def facts(scan: ScanResult, targets: ScanTargets) -> dict:
    """All results, but for the ids that were looked for to see whether a server serves the corpus."""
    return {**vars(scan), "probe": None, "titles": targets.titles.matches}


def test_everything_is_found_in_one_pass(tmp_path):
    targets = wanted("3", "99", probe=("4", "77"))
    scan = scan_corpus(corpus_of(tmp_path / "c.jsonl", 12), targets, tmp_path / "s.json", progress=False)
    assert scan.passages == 12 and scan.ids == {"3"} and scan.done
    assert scan.answers == {"danube": (2, "4"), "text 3": (1, "3"), "of heat film": (2, "3")}
    assert targets.titles.matches == {
        "Ulm": ("exact", "Ulm"),
        "New York": ("underscores", "New_York"),
        "Heat": ("suffix", "Heat (film)"),
    }
    assert scan.probe_found == {"4"}
    assert scan.bad.count == 2 and scan.bad.first[0].startswith(f"{tmp_path / 'c.jsonl'}, line 6: ")


class Killed(Exception):
    """In place of SIGKILL: the scan ends between two rows."""


class Dying(Corpus):
    """A corpus whose reader dies after some rows."""

    rows_left = 0

    def rows(self, *args, **options) -> Iterator:
        for row in super().rows(*args, **options):
            if not self.rows_left:
                raise Killed
            self.rows_left -= 1
            yield row


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 20), max_size=4), st.integers(1, 7))
def test_a_scan_that_was_killed_finds_the_same(tmp_path_factory, deaths, save_every):
    folder = tmp_path_factory.mktemp("scan")
    corpus = corpus_of(folder / "c.jsonl", 23)

    def run(corpus: Corpus, state: str) -> dict:
        targets = wanted("3", "22", "99", probe=("1",))
        scan = scan_corpus(corpus, targets, folder / state, interval=save_every, progress=False)
        return facts(scan, targets)

    expected = run(corpus, "whole.json")
    for rows in deaths:
        dying = Dying(corpus.files)
        dying.rows_left = rows
        with suppress(Killed):
            run(dying, "state.json")
    assert run(corpus, "state.json") == expected


@given(ids=st.lists(st.integers(0, 6), max_size=12), dies_after=st.integers(0, 12))
def test_every_repeated_id_is_found_also_over_a_kill(tmp_path_factory, ids, dies_after):
    folder = tmp_path_factory.mktemp("repeated")
    lines = (json.dumps({"id": str(number), "contents": "Ulm"}) + "\n" for number in ids)
    (folder / "c.jsonl").write_text("".join(lines))
    dying = Dying([folder / "c.jsonl"])
    dying.rows_left = dies_after
    for corpus in (dying, Corpus([folder / "c.jsonl"])):
        with suppress(Killed):
            scan = scan_corpus(corpus, wanted(), folder / "s.json", interval=1, progress=False)
    assert scan.repeated.count == len(ids) - len(set(ids))


def test_a_finished_scan_is_read_and_not_repeated(tmp_path):
    corpus = corpus_of(tmp_path / "c.jsonl", 12)
    first = wanted("3")
    expected = facts(scan_corpus(corpus, first, tmp_path / "s.json", progress=False), first)
    dead = Dying(corpus.files)
    second = wanted("3", probe=("5",))
    assert facts(scan_corpus(dead, second, tmp_path / "s.json", progress=False), second) == expected


def test_a_state_of_other_questions_another_corpus_or_a_broken_one_is_not_used(tmp_path):
    corpus, state = corpus_of(tmp_path / "c.jsonl", 12), tmp_path / "s.json"
    scan_corpus(corpus, wanted("3"), state, progress=False)
    assert scan_corpus(corpus, wanted("3", "4"), state, progress=False).ids == {"3", "4"}
    longer = corpus_of(tmp_path / "c.jsonl", 14)
    assert scan_corpus(longer, wanted("3", "4"), state, progress=False).passages == 14
    for broken in ("", "[]", "{}", '{"fingerprint": 1}', state.read_text()[:-40]):
        state.write_text(broken)
        assert scan_corpus(longer, wanted("3", "4"), state, progress=False).passages == 14


@pytest.mark.full
@pytest.mark.slow
def test_a_scan_continues_after_sigkill(tmp_path):
    corpus_of(tmp_path / "c.jsonl", 200_000)
    question = {"id": "a", "question": "q", "answer": "Text 199999", "supporting_ids": ["0", "199999"]}
    (tmp_path / "q.jsonl").write_text(json.dumps(question) + "\n")
    program = (
        "import sys; from pathlib import Path\n"
        "from rag_r1.corpus.check import CheckArguments, check_corpus\n"
        "folder = Path(sys.argv[1])\n"
        "args = CheckArguments(questions=[folder / 'q.jsonl'], corpus=[folder / 'c.jsonl'],\n"
        "                      out=folder / 'out', skip_bad_rows=True, no_progress=True)\n"
        "print(check_corpus(args, save_interval=5000).summary['passages'])\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    state = tmp_path / "out" / "scan.json"
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    while process.poll() is None and not state.exists():
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = json.loads(state.read_text())
    assert not before["done"] and 0 < before["passages"] < 200_000
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.stdout == "200000\n", done.stderr
    verdict = json.loads((tmp_path / "out" / "verdicts.jsonl").read_text())
    assert verdict["reason"] == "ids_present" and verdict["signals"]["passages"] == 1
