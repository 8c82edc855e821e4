"""Documents are fitted before an observation is encoded: best first, whole if possible, in few tries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.agent.truncation import Truncation, fit_observation
from rag_r1.protocols import Document, Failure, load_protocol

SQ, MQ = load_protocol("rag_r1_sq"), load_protocol("rag_r1_mq")


class Counting:
    """A token is a character, but those in `free` cost nothing (as those that a normaliser removes)."""

    def __init__(self, free=""):
        self.free, self.calls = free, 0

    def __call__(self, text):
        self.calls += 1
        return [ord(character) for character in text if character not in self.free]


def fit_documents(protocol, matches, encode, max_tokens):
    return Truncation(protocol, encode).fit_query(matches, max_tokens)


def documents(*sizes):
    return [Document(str(i), "x" * size) for i, size in enumerate(sizes)]


def test_whole_documents_are_kept_in_rank_order():
    matches = documents(10, 10, 10)
    each = len("Doc 1: ") + 10
    assert fit_documents(SQ, matches, Counting(), 3 * each) == matches
    assert fit_documents(SQ, matches, Counting(), 2 * each + 7) == matches[:2]


def test_the_first_that_does_not_fit_is_shortened_and_the_rest_left_out():
    shown = fit_documents(SQ, documents(10, 100, 1), Counting(), 17 + 30)
    assert [len(document.contents) for document in shown] == [10, 23]


def test_a_document_is_shortened_at_a_word_boundary():
    shown = fit_documents(SQ, [Document("1", "alpha beta gamma delta")], Counting(), 7 + 13)
    assert [document.contents for document in shown] == ["alpha beta"]


def test_text_without_blanks_is_cut_between_characters():
    shown = fit_documents(SQ, [Document("1", "東京都" * 20)], Counting(), 7 + 20)
    assert [document.contents for document in shown] == [("東京都" * 20)[:20]]


@pytest.mark.parametrize("contents", ["x" * 100, " " * 100, "\n" * 100])
def test_a_remainder_that_says_nothing_is_left_out(contents):
    assert fit_documents(SQ, [Document("1", contents)], Counting(), 7) == []


def test_what_is_measured_is_what_is_shown():
    special = MQ.with_special_tokens(["<eos>"])
    # Quotes are escaped in JSON, and a special token, one id as it stands, is many once it is harmless.
    for contents in ('"' * 50, "x\n" * 50, "<eos>" * 50, "</information>" * 50):

        def encode(text):
            return [0] * len(text.replace("<eos>", "!"))

        shown = fit_documents(special, [Document("1", contents)], encode, 60)
        overhead = len(special.observation(["q"], [[]]))
        assert 0 < len(encode(special.observation(["q"], [shown]))) - overhead <= 60


def test_a_long_observation_is_narrowed_for_all_queries_alike():
    matches = [documents(200, 200), documents(200, 200), []]
    ids, shown, _ = fit_observation(MQ, ["a", "b", "c"], matches, Counting(), 1000, 400)
    assert len(ids) <= 400
    assert 300 < len(ids)
    assert [len(item) for item in shown] == [1, 1, 0]
    assert len(shown[0][0].contents) == len(shown[1][0].contents)


def test_an_observation_that_fits_is_encoded_once():
    encode = Counting()
    matches = [documents(30, 30), documents(40)]
    _, shown, _ = fit_observation(MQ, ["a", "b"], matches, encode, 400, 400)
    assert (shown, encode.calls) == (matches, 1)


def test_every_querys_best_document_comes_before_any_querys_second():
    matches = [documents(60, 60, 60), documents(150)]
    bare = len(MQ.observation(["a", "b"], [[], []]))
    ids, shown, _ = fit_observation(MQ, ["a", "b"], matches, Counting(), 1000, bare + 240)
    assert [[len(document.contents) for document in item] for item in shown] == [[60], [150]]
    assert len(ids) <= bare + 240
    # With a little more room the second is shown in part, and the third, which would fit as well, is not.
    matches = [documents(60, 60, 5), documents(150)]
    _, shown, _ = fit_observation(MQ, ["a", "b"], matches, Counting(), 1000, bare + 270)
    assert [[len(document.contents) for document in item] for item in shown] == [
        [60, pytest.approx(30, abs=15)],
        [150],
    ]


def test_what_a_short_document_leaves_of_its_share_goes_to_the_long_one():
    matches = [documents(20), documents(500)]
    bare = len(MQ.observation(["a", "b"], [[], []]))
    _, shown, _ = fit_observation(MQ, ["a", "b"], matches, Counting(), 1000, bare + 300)
    assert len(shown[0][0].contents) == 20
    assert 240 < len(shown[1][0].contents) <= 300 - 20 - 2 * len("Doc 1: ")


def random_packing(random):
    """Queries, results and limits; a token is a character, or a word."""
    words = 'alpha be " </information> 東京 \n <|im_end|> x'.split(" ")
    results = [
        Failure("the search engine is away")
        if random.random() < 0.1
        else [
            Document(f"{query}-{rank}", " ".join(random.choices(words, k=random.choice([0, 3, 20, 80]))))
            for rank in range(random.randrange(5))
        ]
        for query in range(random.randint(1, 3))
    ]
    limits = random.choice([60, 200, 500, 2000]), random.choice([30, 100, 150, 300, 700, 2000])
    return random.choice([SQ, MQ]), [f"query {i}" for i in range(len(results))], results, *limits


@given(st.randoms(use_true_random=True).map(random_packing), st.sampled_from([list, str.split]))
def test_the_lowest_ranks_go_first_whichever_query_they_answer(scene, encode):
    protocol, queries, results, per_query, total = scene
    fitted = fit_observation(protocol, queries, results, encode, per_query, total)
    bare = [result if isinstance(result, Failure) else [] for result in results]
    if fitted is None:
        assert len(encode(protocol.observation(queries, bare))) > total
        return
    ids, shown, text = fitted

    def observation(documents):
        blocks = [r if isinstance(r, Failure) else d for r, d in zip(results, documents, strict=True)]
        return protocol.observation(queries, blocks)

    assert ids == encode(text) and text == observation(shown) and len(ids) <= total
    assert observation(shown).endswith(protocol.format.template.partition("{body}")[2])
    matches = [[] if isinstance(result, Failure) else result for result in results]
    allowed = [fit_documents(protocol, documents, encode, per_query) for documents in matches]
    # Nothing is left out without need.
    if len(encode(observation(matches))) <= min(per_query, total):
        assert shown == matches
    elif len(encode(observation(allowed))) <= total:
        assert shown == allowed
    # Above the last rank that is shown, nothing that a query may have is missing or shortened.
    else:
        above = max(max(map(len, shown)) - 1, 0)
        for fitted_, full in zip(shown, allowed, strict=True):
            assert fitted_[:above] == full[:above]
            assert all(f.contents.startswith(m.contents) for m, f in zip(fitted_, full, strict=False))


def test_a_failure_is_shown_whole_or_not_at_all():
    queries, results = ["a", "b"], [Failure("the search engine is away"), documents(500)]
    ids, shown, _ = fit_observation(MQ, queries, results, Counting(), 1000, 200)
    assert "the search engine is away" in "".join(map(chr, ids))
    assert shown[0] == []
    assert fit_observation(MQ, queries, results, Counting(), 1000, 40) is None


@pytest.mark.parametrize("total", [-5, 0, 10])
def test_without_room_for_the_tags_there_is_no_observation(total):
    assert fit_observation(SQ, ["q"], [documents(50)], Counting(), 1000, total) is None


# A try encodes the text, and other trajectories wait meanwhile: there must be few, whatever the text.
def test_a_text_that_is_dense_at_its_beginning_is_fitted_in_few_tries():
    encode = Counting(free=".")
    shown = fit_documents(SQ, [Document("1", "x" * 1000 + "." * 100_000)], encode, 1000)
    assert 500 < len(shown[0].contents) <= 993
    assert encode.calls <= 40


def test_an_observation_that_is_mostly_queries_is_fitted_in_few_tries():
    encode = Counting()
    queries = ["q" * 1000, "r" * 1000]
    bare = len(MQ.observation(queries, [[], []]))
    ids, _, _ = fit_observation(MQ, queries, [documents(900), documents(900)], encode, 1000, bare + 20)
    assert bare <= len(ids) <= bare + 20
    assert encode.calls <= 200
