"""The questions of a small encyclopedia: their kinds, what is ambiguous, and the splits."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from data_process.passage_questions.splits import split_of
from tests.data_process.passage_questions.made_pages import FILM, PAGES, asked, passages, rows_of

WORDS = ("Amber", "Brook", "Cedar", "Delta", "Ember", "Fjord", "Grove", "Heath")


def test_each_kind_is_asked_with_its_gold_passages():
    rows = rows_of(PAGES)
    ids = {passage.title: passage.id for passage in passages(PAGES)}
    assert {row["kind"] for row in rows} == {"one_hop", "bridge", "two_facts", "comparison", "yes_no"}
    for row in rows:
        assert row["supporting_ids"] == [ids[title] for title in row["supporting_titles"]]
        assert len(row["supporting_ids"]) == (1 if row["kind"] in ("one_hop", "two_facts") else 2)
    assert len({row["id"] for row in rows}) == len(rows)


def test_a_bridge_asks_for_a_fact_of_the_entity_that_a_fact_names():
    bridges = asked(rows_of(PAGES), "bridge", "director, birth year")
    about = {question: golds for question, golds in bridges.items() if 'film "Silver Gate"' in question}
    assert list(about.values()) == [["1950"]]
    bands = asked(rows_of(PAGES), "bridge", "artist, formation year")
    assert list(bands.values()) == [["1990"]]


def test_a_name_without_the_right_profession_is_no_bridge():
    other = PAGES | {"Anna Rado": "Anna Rado (born 3 May 1950) is a Hungarian chess player."}
    assert not any('"Silver Gate"' in question for question in asked(rows_of(other), "bridge"))


def test_an_album_of_the_same_name_and_the_band_of_a_relative_are_no_bridge():
    song = '"Ebb" is a song by Al Roe, from his album "Low Tide".'
    singer = (
        "Jo Ley (born 1980) is the daughter of Al Ley, singer of the band Harbour Lights, and a Dutch singer."
    )
    bridges = " ".join(asked(rows_of(PAGES | {"Ebb": song, "Jo Ley": singer}), "bridge"))
    assert "Ebb" not in bridges and "Jo Ley" not in bridges


def test_two_facts_lead_to_one_page_only():
    question = "1962"
    [golds] = [golds for text, golds in asked(rows_of(PAGES), "two_facts").items() if question in text]
    assert golds == ["The Long Ferry", "Long Ferry"]
    more = PAGES | {"Red Hill": "Red Hill is a series. Tom Hale wrote it in 1962."}
    assert not any(question in text for text in asked(rows_of(more), "two_facts"))


def test_a_person_is_also_known_by_the_full_name():
    answers = asked(rows_of(PAGES), "two_facts", "nationality, birth date").values()
    assert ["Anna Rado", "Anna Maria Rado"] in answers


def test_comparisons_have_no_ties_and_name_the_first():
    years = {"The Long Ferry": 1962, "Green Hours": 1971, "Silver Gate": 1980, "Twin": 1980}
    pages = PAGES | {"Twin": FILM.format("Twin", 1980, "Al Roe")}
    comparisons = asked(rows_of(pages), "comparison", "release year")
    assert comparisons
    for question, golds in comparisons.items():
        named = {title: year for title, year in years.items() if f'"{title}"' in question}
        assert len(set(named.values())) == 2 and golds[0] == min(named, key=named.get)


def test_nationalities_that_overlap_are_not_contrasted():
    nations = ("British", "Scottish", "Welsh", "Irish") * 2
    texts = {
        f"Al {word}": f"(born 1950) is a {nation} poet." for word, nation in zip(WORDS, nations, strict=True)
    }
    people = {name: f"{name} {text}" for name, text in texts.items()}
    answers = asked(rows_of(people), "yes_no", "both nationality").values()
    assert ["no"] not in answers


def test_an_entity_whose_name_another_page_has_is_left_out():
    assert any("Tom Hale" in row["supporting_titles"] for row in rows_of(PAGES))
    for title in ("Tom Hale (singer)", "Thomas Hale"):
        rows = rows_of(PAGES | {title: "Tom Hale (born 1977) is an English singer."})
        assert not any("Tom Hale" in row["supporting_titles"] for row in rows)


def test_a_year_that_another_passage_contradicts_is_left_out():
    for more, is_asked in ({}, True), ({"Eva Lund": 'Eva Lund is known for "Green Hours" (1973).'}, False):
        questions = [row["question"] for row in rows_of(PAGES | more) if row["relation"] == "release year"]
        assert any("Green Hours" in question for question in questions) == is_asked


def test_words_in_the_title_become_words_of_the_question_and_never_its_answer():
    pages = {
        "Gate (1950 film)": FILM.format("Gate", 1950, "Al Roe"),
        "Al Roe (painter)": "Al Roe (born 1950) is a Dutch painter.",
        "Jo Ley (born 1950)": "Jo Ley (born 1950) is a Dutch painter.",
    }
    questions = " ".join(asked(rows_of(pages), "one_hop"))
    assert 'the 1950 film "Gate"' in questions and "the painter Al Roe" in questions
    assert "Jo Ley" not in questions and not any(row["relation"] == "release year" for row in rows_of(pages))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.sampled_from(WORDS), min_size=3, unique=True))
def test_no_entity_is_in_both_splits_and_the_same_seed_gives_the_same_rows(seed, words):
    pages = dict(PAGES)
    for number, word in enumerate(words):
        pages[f"{word} Night"] = FILM.format(f"{word} Night", 1950 + number, "Anna Rado")
        pages[f"Al {word}"] = f"Al {word} (born {1900 + number}) is a Dutch poet."
    rows = rows_of(pages, seed=seed, test_share=0.5)
    titles = {split: {t for row in rows if row["split"] == split for t in row["supporting_titles"]}
              for split in ("train", "test")}  # fmt: skip
    assert not titles["train"] & titles["test"]
    assert rows == rows_of(pages, seed=seed, test_share=0.5)


@given(st.text(), st.integers())
def test_a_larger_share_keeps_what_was_in_test(title, seed):
    assert split_of(title, seed, 0.9) == "test" or split_of(title, seed, 0.1) == "train"


def test_at_most_the_asked_number_of_each_kind_is_drawn_in_turn_from_the_relations():
    rows = rows_of(PAGES, per_kind=4)
    kinds = [row["kind"] for row in rows]
    assert max(map(kinds.count, kinds)) == 4
    assert len({row["relation"] for row in rows if row["kind"] == "one_hop"}) == 4
