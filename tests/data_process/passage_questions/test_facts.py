"""What the rules read in a passage, and what they leave because they do not understand it whole."""

from __future__ import annotations

import pytest

from data_process.passage_questions.entities import Entity, Links
from data_process.passage_questions.facts import Fact
from data_process.passage_questions.kinds import PageFacts, first_sentence, read_facts

_FACTS = [
    ("Ian Roe", "Ian George Roe (born 20 February 1963) is an English musician.", "birth year", "1963"),
    (
        "Ian Roe",
        "Ian Roe ( ; born May 3, 1950 in Ulm, Bavaria) is a German poet.",
        "birth date",
        "3 May 1950",
    ),
    ("Ian Roe", "Ian Roe (1 May 1901 – June 2, 1980) was a Welsh poet.", "death date", "2 June 1980"),
    ("Ian Roe", "Ian Roe (born 1950 in Ulm, Bavaria) is a German poet.", "birthplace", "Ulm, Bavaria"),
    ("Ian Roe", "Ian Roe (born 1950) is a former Dutch professional cyclist.", "nationality", "Dutch"),
    ("Ian Roe", "Ian Roe (born 3 May 1950 in Ulm – 1980) was a poet.", "death year", "1980"),
    ("Ian Roe", "Ian Roe is an Irish activist.", "nationality", "Irish"),
    ("Ian Roe", "Ian Roe is an American DJ.", "nationality", "American"),
    ("Gate (film)", "Gate is a 1980 film written and directed by Al B. Roe.", "director", "Al B. Roe"),
    ("Gate (film)", "Gate is a film directed by Al Roe and starring Jo Ley.", "director", "Al Roe"),
    ("Gate (film)", "Gate is a drama film. It was released on May 3, 1980.", "release year", "1980"),
    ("Low", '"Low" is the second studio album by rock band The Hues.', "artist", "The Hues"),
    ("Low", '"Low" is an album by Al Roe and the Hues, released in 1980.', "artist", "Al Roe and the Hues"),
    ("Gate", "Gate is a novel by the Irish author Al Roe, published in 1950.", "author", "Al Roe"),
    ("The Hues", "The Hues are a Finnish rock band formed in Espoo in 1993.", "formation year", "1993"),
    ("Ulm School", "Ulm School is a school in Ulm, Ohio. It was founded in 1911.", "founding year", "1911"),
    ("Ulm School", "Ulm School is a private school in Ulm, Ohio, United States.", "state", "Ohio"),
    ("Rosa", "Rosa is a genus of plants in the family Rosaceae.", "family", "Rosaceae"),
]
_NO_FACTS = [
    ("Ian Roe", "Ian Roe (c. 1500 – 1560) was a German poet.", "birth year"),
    ("Ian Roe", "Ian Roe (born 3 May 1950 or 1951) is a German poet.", "birth year"),
    ("Ian Roe", "Ian Roe (born 1950, active 1970–1980) is a poet.", "death year"),
    ("Ian Roe", "Ian Roe (born 1950; married 1970–1980) is a poet.", "death year"),
    ("Ian Roe", "Ian Roe (1950 in Ulm, active 1970–1980) is a poet.", "death year"),
    ("Ian Roe", "Ian Roe (1300–1250 BC) was a poet.", "birth year"),
    ("Ian Roe", "Ian Roe (1950–1930) was a poet.", "birth year"),
    ("Ian Roe", "Ian Roe (born 1950) is a German Shepherd breeder and author.", "nationality"),
    ("Ian Roe", "Ian Roe (born 1950) is a French horn player.", "nationality"),
    ("Ian Roe", "Ian Roe (born 1950) is an American Samoan swimmer.", "nationality"),
    ("Ian Roe", "Ian Roe (born 1950) is a German-American poet.", "nationality"),
    ("Ian Roe", "Ian Roe (born 1950) is an American football player.", "nationality"),
    ("Ian Roe", "Ian Roe (born 1950) is a Swiss and Dutch poet.", "nationality"),
    ("Gate", "Gate is a 1980 film directed by Al Roe and Jo Ley.", "director"),
    ("Gate", "Gate is a 1980 film directed by Al Roe, Jo Ley, and Bo Dun.", "director"),
    ("Gate", "Gate is a 1980 film. It was released in 1981.", "release year"),
    ("Gate", 'Gate is a 1980 film. It is the sequel to " ".', "earlier film"),
    ("Low", '"Low" is an album by Ulm Records, released in 1980.', "artist"),
    ("The Hues", "The Hues are a rock band formed in 1990. It was formed in 1991 again.", "formation year"),
    ("Gate", 'Gate is a 1980 film. The hit "Ulm", directed by Al Roe, came before.', "director"),
    ("Ulm School", "Ulm School is a school in Yanco, New South Wales.", "country"),
    ("Ulm Museum", "Ulm Museum is a museum. It has a label which was founded in 1970.", "founding year"),
    ("Ulm School", "Ulm School is a school in Ulm, Ohio, with pupils from Texas.", "state"),
]


@pytest.mark.parametrize(("title", "text", "relation", "value"), _FACTS)
def test_a_fact_is_read(title, text, relation, value):
    assert read_facts(title, text).facts[relation].value == value


@pytest.mark.parametrize(("title", "text", "relation"), _NO_FACTS)
def test_what_is_told_twice_or_with_doubt_is_no_fact(title, text, relation):
    assert relation not in read_facts(title, text).facts


@pytest.mark.parametrize(
    ("title", "text"),
    [
        ("Rebels", "Rebels is an active militant group near Cairo."),
        ("Al Roe", "Al Roe (born 1950) is a commercial airline pilot."),
        ("Gate", "Gate is a film director from Ulm."),
        ("Gate", "Gate is a song cycle."),
        ("List of films", "This is a list of films."),
    ],
)
def test_a_page_that_only_holds_the_word_is_of_no_kind(title, text):
    assert read_facts(title, text) is None


def test_a_fact_has_all_forms_of_the_answer():
    facts = read_facts("Ian Roe", "Ian Roe (born May 3, 1950) is an American poet.").facts
    assert facts["birth date"].forms == ("May 3, 1950", "3 May 1950")
    assert {"American", "United States", "the United States", "U.S."} <= set(facts["nationality"].forms)


def test_a_vague_occupation_is_told_with_the_word_before_it():
    said = ("Swiss chess player", "Swiss player", "film make-up artist", "composer-lyricist")
    nouns = [read_facts("Ian Roe", f"Ian Roe (born 1950) is a {what}.").noun for what in said]
    assert nouns == ["chess player", "person", "person", "lyricist"]


def test_a_sentence_does_not_end_at_an_initial_or_in_parentheses():
    first = first_sentence("J. K. Roe (b. 1950. Ulm) is a poet. He lives.")
    assert first == "J. K. Roe (b. 1950. Ulm) is a poet."


def test_a_passage_of_initials_alone_takes_no_longer_than_others():
    assert first_sentence(text := "Roe is " + "A. " * 200_000) == text


def test_a_film_without_a_year_is_no_certain_link_even_of_a_text_with_a_question_mark():
    earlier = {"earlier film": Fact("earlier film", "Who?", ("Who?",))}
    film, later = (
        Entity(title, title, title, title, PageFacts("film", facts, "film"), "It follows Who?")
        for title, facts in (("Who?", {}), ("Later", earlier))
    )
    assert Links([film, later]).follow(later, "earlier film") is None
