"""Which targets count as quoting a document."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rag_r1.protocols import Document
from rag_r1.sft.copy_check import RUN, SHORTEST, find_quotation, words

TEXT = (
    "The Danube rises in the Black Forest and flows past Ulm, Regensburg, Passau, Linz, Vienna and Budapest "
    "before it reaches the Black Sea."
)
DOCUMENT = Document("1", f'"Danube"\n{TEXT}')
WORDS = st.lists(st.text("abcé", min_size=1, max_size=3), max_size=40)


def test_a_long_run_of_words_is_a_quotation_whatever_its_case_and_punctuation():
    run = words(TEXT)[3 : 3 + RUN]
    assert find_quotation(f"<think> it {' - '.join(run).upper()} </think>", [DOCUMENT]) == " ".join(run)


def test_a_shorter_run_is_none():
    assert find_quotation(f"<think> {' '.join(words(TEXT)[3 : 2 + RUN])} indeed </think>", [DOCUMENT]) is None


def test_the_same_words_in_another_order_are_none():
    assert find_quotation(" ".join(reversed(words(TEXT))), [DOCUMENT]) is None


def test_a_short_document_counts_as_a_whole_unless_it_is_a_name():
    assert find_quotation("so Ulm lies on the river Danube.", [Document("1", "Ulm lies on the river Danube")])
    assert find_quotation("Ulm lies on the river", [Document("1", "Ulm lies on the river Danube")]) is None
    name = Document("1", "Johann Wolfgang von Goethe")
    assert len(words(name.contents)) < SHORTEST
    assert find_quotation("<answer> Johann Wolfgang von Goethe </answer>", [name]) is None


def test_a_title_does_not_hide_a_short_text():
    document = Document("1", '"Ulm"\nUlm lies on the river Danube')
    assert find_quotation("<think> Ulm lies on the river Danube </think>", [document])


def test_each_character_of_chinese_and_japanese_counts_as_a_word():
    document = Document("1", "多瑙河发源于黑森林流经乌尔姆和维也纳")
    assert find_quotation("<think> 多瑙河发源于黑森林流经乌尔 </think>", [document])
    assert find_quotation("<answer> 乌尔姆 </answer>", [document]) is None


def test_nothing_is_quoted_from_nothing():
    assert find_quotation("", [DOCUMENT, Document("2", "")]) is None
    assert find_quotation("<answer> Ulm </answer>", []) is None


@given(WORDS, WORDS, WORDS, st.data())
def test_every_run_that_is_long_enough_is_found(document, before, after, data):
    start = data.draw(st.integers(0, len(document)))
    run = document[start : start + RUN]
    found = find_quotation(" ".join([*before, *run, *after]), [Document("1", " ".join(document))])
    assert found or len(run) < min(RUN, max(len(document), SHORTEST))


@given(WORDS, WORDS)
def test_what_is_found_stands_in_both(target, document):
    found = find_quotation(" ".join(target), [Document("1", " ".join(document))])
    if found:
        assert f" {found} " in f" {' '.join(words(' '.join(target)))} "
        assert f" {found} " in f" {' '.join(words(' '.join(document)))} "
