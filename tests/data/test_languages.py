"""A question in another language than its passages is found, and what is not plain is left alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.data.languages import is_in_another_language

TEXTS = {
    "en": "The painter Ann Lee was born in Ulm, and she died at the age of ninety.",
    "de": "Die Malerin Ann Lee wurde in Ulm geboren und starb auf dem Land.",
    "fr": "La peintre Ann Lee est née dans la ville du Mans et meurt avec une amie.",
    "es": "La pintora Ann Lee nació en la ciudad de Ulm y fue una autora del siglo.",
    "zh": "李安出生在乌尔姆。",
    "ru": "Анна Ли родилась в Ульме.",
}
QUESTIONS = {
    "en": "In which town did Ann Lee live?",
    "de": "In welchem Jahr wurde Ann Lee geboren?",
    "fr": "Dans quelle ville Ann Lee est-elle née?",
    "es": "¿Dónde nació Ann Lee?",
    "zh": "李安出生在哪里？",
    "ru": "Где родилась Анна Ли?",
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_of_another_language_is_found(question, text):
    is_other = is_in_another_language(QUESTIONS[question], [TEXTS[text]])
    assert is_other == (question != text)


@pytest.mark.parametrize(
    "question",
    [
        "Who directed La Casa de los Espíritus?",
        "Which river is called Wie in German?",
        "What does the angle α mean?",
        "Name the author of Wer wenn nicht wir, who was born in Ulm?",
    ],
)
def test_foreign_names_in_a_question_do_not_make_it_foreign(question):
    assert not is_in_another_language(question, [TEXTS["en"]])


def test_full_width_letters_and_both_kana_are_no_other_language():
    assert not is_in_another_language("ＢＢＣのホテルはどこ", ["BBCは東京にある。"])


@given(st.text("абвгдειοπ你好吗かな한국 ", max_size=60))
def test_no_text_is_in_another_script_than_itself(text):
    assert not is_in_another_language(text, [text])


def test_where_the_texts_do_not_tell_their_language_nothing_is_said():
    assert not is_in_another_language(QUESTIONS["de"], ["Ann Lee, Ulm, 1903"])
