"""Titles in variants: which say that a page is there, and which only that a similar one is."""

from __future__ import annotations

import gzip
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_r1.corpus.redirects import read_redirects
from rag_r1.corpus.title_index import LEVELS, STRONG, WEAK, TitleIndex, key_of, level_of
from rag_r1.data.files.bad_rows import BadRows
from rag_r1.io.errors import DataError


@pytest.mark.parametrize(
    ("title", "page", "level"),
    [
        ("Ulm", "Ulm", "exact"),
        ("Cafe\u0301", "Café", "unicode"),
        ("2017–18 season", "2017-18 season", "unicode"),
        ("Ocean’s Eleven", "Ocean's Eleven", "unicode"),
        ("New\u00a0 York", "New York", "unicode"),
        ("Ｕｌｍ", "Ulm", "unicode"),
        ("New_York", "New York", "underscores"),
        ("new york", "New York", "case"),
        ("NEW_YORK", "New York", "case"),
        ("STRASSE", "straße", "case"),
        ("iPod", "IPod", "case"),
        ("Popular Science", "Popular science", "mixed_case"),
        ("Meša Selimović", "Mesa Selimovic", "diacritics"),
        ("Lodz", "Łódź", "diacritics"),
        ("Heat", "Heat (1995 film)", "suffix"),
        ("Heat (film)", "heat (1995 film)", "suffix"),
        ("Ulm", "Neu-Ulm", None),
        ("C", "C++", None),
        ("(film)", "Heat (film)", None),
    ],
)
def test_two_titles_match_on_the_best_level(title, page, level):
    assert level_of(title, page) == level


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@settings(deadline=None, max_examples=100)
@given(texts, texts)
def test_a_match_is_mutual_and_follows_from_the_key(first, second):
    assert level_of(first, second) == level_of(second, first)
    if key_of(first) == key_of(second):
        assert level_of(first, second) in LEVELS
    assert level_of(first, first) == "exact"


@settings(deadline=None, max_examples=100)
@given(texts)
def test_another_normal_form_or_underscores_are_the_same_page(title):
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert level_of(title, unicodedata.normalize(form, title)) in STRONG
    assert level_of(title, title.replace(" ", "_")) in STRONG


@settings(deadline=None, max_examples=100)
@given(st.lists(texts, max_size=6), st.lists(texts, max_size=6))
def test_what_is_noted_is_the_best_match_of_all_titles_of_the_corpus(wanted, corpus):
    titles = TitleIndex(wanted)
    for title in corpus:
        titles.note(title)
    for title in wanted:
        levels = [level for page in corpus if (level := level_of(title, page))]
        assert titles.level(title) == min(levels, key=LEVELS.index, default=None)


def test_a_redirect_leads_to_a_page_and_the_other_way_round_is_weak():
    titles = TitleIndex(["Ceylon", "Mumbai", "Ulm"])
    used = titles.add_redirects([("Ceylon", "Sri Lanka"), ("Bombay", "Mumbai"), ("x", "y"), ("ulm", "Ulm")])
    assert used == 2
    for title in ("sri lanka", "Bombay"):
        titles.note(title)
    assert titles.level("Ceylon") == "redirect" and titles.level("Mumbai") == "redirected_from"
    assert titles.level("Ulm") is None
    titles.note("Mumbai")
    assert titles.level("Mumbai") == "exact"
    assert "redirect" in STRONG and "redirected_from" in WEAK


def test_redirects_do_not_lead_on_to_others():
    titles = TitleIndex(["A town"])
    titles.add_redirects([("A town", "B town"), ("B town", "C town")])
    titles.note("C town")
    assert titles.level("A town") is None


@pytest.mark.parametrize("name", ["r.tsv", "r.tsv.gz", "r.jsonl", "r.jsonl.gz"])
def test_redirects_are_read_from_every_format(tmp_path, name):
    good = b'{"from": "Ceylon", "to": "Sri Lanka"}\n' if "jsonl" in name else b"Ceylon\tSri Lanka\n"
    data = b"\xef\xbb\xbf" + good + b"\n" + b"x" * 70_000 + b"\n\xff\n[]\n" + good
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    bad = BadRows()
    pairs = list(read_redirects(tmp_path / name, bad, progress=False))
    assert pairs == [("Ceylon", "Sri Lanka")] * 2
    assert bad.count == 3 and bad.first[0].startswith(f"{tmp_path / name}, line 3: ")


def test_a_file_of_redirects_that_cannot_be_read_is_named(tmp_path):
    for name in ("r.csv", "none.tsv"):
        with pytest.raises(DataError, match=f"{name}: cannot be read"):
            list(read_redirects(tmp_path / name, BadRows(), progress=False))
