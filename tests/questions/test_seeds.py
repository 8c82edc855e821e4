"""Seeds: which passages a question is made from, along which links, and in what order they are drawn."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rag_r1.questions.passages.documents import PassagePool, SourcePassage
from rag_r1.questions.passages.links import Link, Links
from rag_r1.questions.seeds import KINDS, PAIRS, Seed, SeedPlan
from tests.questions.drafted import passage

CHAIN = {
    "Grey Works": "The company was founded by Ann Lee.",
    "Ann Lee": "A writer who was born in Grey Ulm.",
    "Grey Ulm": "It lies on the river Blue Brook.",
    "Blue Brook": "A river of forty miles.",
}


def pool_of(*passages: SourcePassage) -> PassagePool:
    return PassagePool(passages, len(passages))


def chain(**split: str) -> PassagePool:
    return pool_of(*(passage(name, text, split=split.get(name[:4], "train")) for name, text in CHAIN.items()))


def test_a_title_in_the_text_a_url_with_parentheses_in_others_and_a_rare_name_are_links():
    page = passage("Page", "See (https://a.org/b_(town)), or ask Bo Ray of Grey Ulm.")
    other = passage("Other", "An address.", url="https://a.org/b_(town)")
    pool = pool_of(page, other, passage("Third", "Here is Bo Ray."), passage("Grey Ulm (town)", "A town."))
    links = [Link("Grey Ulm (town)", "title"), Link("Other", "url"), Link("Third", "name")]
    assert Links(pool).of(page) == links


def test_a_name_of_many_a_title_of_two_and_the_first_word_of_a_sentence_are_none():
    page = passage("Page", "Music is played. Grey Ulm and Bo Ray are here.")
    others = [passage(f"Page {number}", "Bo Ray again.") for number in range(9)]
    titles = [passage("Music", "x"), passage("Grey Ulm (town)", "x"), passage("Grey Ulm (film)", "x")]
    links = Links(pool_of(page, *others, *titles)).of(page)
    assert {link.kind for link in links} == {"name"}
    assert {link.target for link in links}.isdisjoint(["Music", "Page 1"])


def test_no_link_stays_in_its_document():
    part = passage("Ann Lee", "Ann Lee, once more.", document="ann lee")
    assert Links(pool_of(chain().by_id["Ann Lee"], part)).of(part) == []


def test_no_bridge_leaves_its_split():
    pool = chain(Grey="test")
    seeds = SeedPlan(Links(pool), ["bridge"], 9, 0, 0.0).draw({})
    assert Links(pool).of(pool.by_id["Ann Lee"]) and seeds == [], "each names something in the other split"


def test_a_bridge_follows_the_links_in_their_order():
    seeds = SeedPlan(Links(chain()), ["bridge"], 9, 0, 0.0).draw({})
    titles = [[p.title for p in seed.passages] for seed in seeds]
    order = list(CHAIN)
    assert titles and all(found == order[order.index(found[0]) :][: len(found)] for found in titles)
    assert {way for seed in seeds for way in seed.ways} == {"title"}


@given(seed=st.integers(0, 50), count=st.integers(1, 6))
def test_every_seed_has_the_passages_of_its_kind_all_of_one_split(seed, count):
    pool = pool_of(
        *(
            passage(f"Page {n}", f"Page {(n + 1) % 12} is next. {n}", split=("train", "test")[n % 3 == 0])
            for n in range(12)
        )
    )
    similar = {p.id: [q.id for q in pool.passages] for p in pool.passages}
    seeds = SeedPlan(Links(pool), KINDS, count, seed, 0.5).draw(similar)
    assert len({one.id for one in seeds}) == len(seeds)
    assert max(Counter(one.kind for one in seeds).values()) <= count
    for one in seeds:
        assert len({p.split for p in one.passages}) == 1
        assert len({p.document for p in one.passages}) == len(one.passages)
        expected = range(2, 5) if one.kind == "bridge" else [2] if one.kind in PAIRS else [1]
        assert len(one.passages) in expected and len(one.ways) == len(one.passages) - 1
        assert not one.obscure or one.kind == "bridge"


def test_a_large_source_and_a_long_document_do_not_fill_the_set():
    large = [passage(f"A {n}", f"Text {n}.", source="large") for n in range(50)]
    long = [SourcePassage(f"B{n}", f"Part {n}.", document="b", source="small") for n in range(50)]
    seeds = SeedPlan(
        Links(pool_of(*large, *long, passage("C", "x", source="small"))), ["one_hop"], 4, 0, 0
    ).draw({})
    assert Counter(seed.passages[0].source for seed in seeds) == {"large": 2, "small": 2}
    assert len({seed.passages[0].document for seed in seeds}) == 4


def test_more_seeds_leave_those_that_were_drawn_before():
    pool = pool_of(*(passage(f"Page {n}", f"Text {n}.") for n in range(30)))
    few, many = (SeedPlan(Links(pool), ["one_hop"], count, 3, 0).draw({}) for count in (5, 20))
    assert many[:5] == few


def test_a_kind_that_is_named_twice_is_drawn_once():
    seeds = SeedPlan(Links(chain()), ["one_hop", "one_hop"], 9, 0, 0.0).draw({})
    assert len({seed.id for seed in seeds}) == len(seeds) == 4


def test_yes_and_no_are_wanted_equally_often():
    wanted = Counter(Seed(f"yes_no-{n}", "yes_no", (passage("a", "b"),)).planned_answer for n in range(400))
    assert set(wanted) == {"yes", "no"} and abs(wanted["yes"] - wanted["no"]) < 60
    assert Seed("x", "comparison", (passage("a", "b"),)).planned_answer is None


def test_a_copy_of_a_passage_is_not_compared_with_it():
    text = "Ann Lee was born in Ulm in 1903, and wrote many novels there."
    pool = pool_of(passage("Ann Lee", text), passage("About Ann Lee", text), passage("Bo Ray", "A singer."))
    similar = {"Ann Lee": ["Ann Lee", "About Ann Lee", "Bo Ray"]}
    [seed] = SeedPlan(Links(pool), ["comparison"], 5, 0, 0).draw(similar)
    assert [p.title for p in seed.passages] == ["Ann Lee", "Bo Ray"]
