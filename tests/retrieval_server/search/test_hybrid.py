from __future__ import annotations

import shutil
from fractions import Fraction
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from retrieval_server.errors import OutsideRootError, UserError
from retrieval_server.folder.manifest import read_manifest
from retrieval_server.indexing.builder import build_hybrid
from retrieval_server.search.backends import Hit
from retrieval_server.search.hybrid import fuse, open_members
from retrieval_server.search.index_source import IndexSource
from retrieval_server.server.reload import IndexLocation, Reloader

from ..builders import build, edit_json
from ..same_answers import assert_same_answers, plain

QUESTIONS = ["Which river lies Ulm on?", "barges with timber", "Worms", "zzz"]
ranked_lists = st.lists(st.lists(st.integers(0, 12), unique=True, max_size=10), max_size=4)
constants = st.integers(1, 100)
unhurried = settings(suppress_health_check=[HealthCheck.too_slow])  # on a busy machine


def hits(rows):
    return [Hit(row, float(-place)) for place, row in enumerate(rows)]


def rows(results):
    return [hit.row for hit in results]


@unhurried
@example([[0, 1, 2, 5], [0, 1, 2, 5], [0, 1, 2, 5, 6, 7, 3, 8, 4], [4]], 1)  # 3/5 in two ways
@given(ranked_lists, constants)
def test_a_passage_scores_the_sum_of_its_reciprocal_ranks_and_ties_stand_in_corpus_order(lists, k):
    results = fuse([hits(rows) for rows in lists], k, 99)
    exact = {
        row: sum(Fraction(1, k + each.index(row) + 1) for each in lists if row in each)
        for row in {row for each in lists for row in each}
    }
    assert {hit.row: hit.score for hit in results} == pytest.approx({r: float(s) for r, s in exact.items()})
    assert results == sorted(results, key=lambda hit: (-hit.score, hit.row))
    assert rows(results) == sorted(exact, key=lambda row: (-round(exact[row], 12), row))


@unhurried
@given(ranked_lists, constants, st.randoms(use_true_random=False))
def test_the_order_of_the_lists_does_not_matter(lists, k, random):
    shuffled = random.sample(lists, len(lists))
    assert fuse([hits(rows) for rows in shuffled], k, 99) == fuse([hits(rows) for rows in lists], k, 99)


@unhurried
@given(ranked_lists, st.lists(st.integers(0, 12), unique=True, min_size=2), constants, st.data())
def test_a_passage_that_rises_in_one_list_does_not_fall_in_the_answer(lists, ranking, k, data):
    place = data.draw(st.integers(1, len(ranking) - 1))
    row, risen = ranking[place], list(ranking)
    risen[place - 1 : place + 1] = row, ranking[place - 1]
    before, after = (rows(fuse([hits(each) for each in [some, *lists]], k, 99)) for some in (ranking, risen))
    assert after.index(row) <= before.index(row)


@unhurried
@given(ranked_lists, constants, st.integers(1, 15))
def test_a_shorter_answer_is_the_beginning_of_a_longer_one(lists, k, topk):
    every = fuse([hits(rows) for rows in lists], k, 99)
    assert fuse([hits(rows) for rows in lists], k, topk) == every[:topk]


@pytest.fixture(scope="module")
def hybrid_index(bm25_index, dense_index, tmp_path_factory):
    out = tmp_path_factory.mktemp("hybrid") / "both"
    build_hybrid([bm25_index, dense_index], out)
    return out


def test_a_hybrid_merges_what_its_indexes_find(hybrid_index, bm25, dense_index):
    hybrid, dense = IndexSource.open(hybrid_index, device="cpu"), IndexSource.open(dense_index, device="cpu")
    results = hybrid.search(QUESTIONS, 20)
    for question, answer in zip(QUESTIONS, results, strict=True):
        lists = [[hit.passage.id for hit in part.search([question], 20)[0]] for part in (bm25, dense)]
        for hit in answer:
            ranks = [each.index(hit.passage.id) + 1 for each in lists if hit.passage.id in each]
            assert hit.score == pytest.approx(sum(1 / (60 + rank) for rank in ranks))
        assert len(answer) == 20, "the dense index finds all"
    alone = [plain(hybrid.search([question], 20)[0]) for question in QUESTIONS]
    assert_same_answers(alone, [plain(answer) for answer in results], hybrid.description.guarantee)
    assert [answer[:3] for answer in results] == hybrid.search(QUESTIONS, 3)


def test_a_hybrid_tells_the_encoder_and_text_of_its_parts(hybrid_index, dense_index):
    both, dense = (
        IndexSource.open(folder, device="cpu").description for folder in (hybrid_index, dense_index)
    )
    assert (both.backend, both.passages, both.encoder) == ("hybrid", 20, dense.encoder)
    assert both.corpus_sha256 == dense.corpus_sha256


def test_the_folders_can_be_moved_together(bm25_index, dense_index, tmp_path):
    for name, folder in (("a", bm25_index), ("b", dense_index)):
        shutil.copytree(folder, tmp_path / "here" / name)
    build_hybrid([tmp_path / "here/a", tmp_path / "here/b"], tmp_path / "here/both")
    (tmp_path / "here").rename(tmp_path / "there")
    assert IndexSource.open(tmp_path / "there/both", device="cpu").search(["Ulm"], 1)[0]


def test_indexes_of_different_corpora_are_refused_with_both_hashes(bm25_index, tmp_path):
    (tmp_path / "c.tsv").write_text("1\tulm\n")
    other = build(tmp_path / "c.tsv", tmp_path / "other")
    with pytest.raises(UserError, match=f"{read_manifest(other).corpus.sha256} and [0-9a-f]{{64}}"):
        build_hybrid([bm25_index, other], tmp_path / "both")
    assert not (tmp_path / "both").exists()


def test_one_index_a_hybrid_and_an_index_without_text_are_refused(bm25_index, hybrid_index, tmp_path):
    bare = shutil.copytree(bm25_index, tmp_path / "a", ignore=shutil.ignore_patterns("*.arrow"))
    reasons = {bm25_index: "two indexes", hybrid_index: "a hybrid itself", bare: "passages.arrow: .*missing"}
    for folder, reason in reasons.items():
        with pytest.raises(UserError, match=reason):
            build_hybrid([bm25_index, folder], tmp_path / "both")
    with pytest.raises(UserError, match="two indexes or more, each once"):
        build_hybrid([bm25_index, bare, bm25_index], tmp_path / "both")


def test_an_index_is_not_replaced_by_a_hybrid_of_itself(bm25_index, dense_index, tmp_path):
    shutil.copytree(bm25_index, tmp_path / "a")
    with pytest.raises(UserError, match="would replace .*a, which it searches"):
        build_hybrid([tmp_path / "a", dense_index], tmp_path / "a", overwrite=True)
    assert read_manifest(tmp_path / "a").backend == "bm25"


def test_a_hybrid_in_the_place_of_a_link_finds_its_parts(bm25_index, dense_index, tmp_path):
    shutil.copytree(bm25_index, tmp_path / "on/another/disk")
    (tmp_path / "both").symlink_to(tmp_path / "on/another/disk")
    build_hybrid([bm25_index, dense_index], tmp_path / "both", overwrite=True)
    assert IndexSource.open(tmp_path / "both", device="cpu").search(["Ulm"], 1)[0]


def test_a_part_that_was_built_again_of_another_corpus_is_refused_at_start(bm25_index, dense_index, tmp_path):
    shutil.copytree(bm25_index, tmp_path / "a")
    build_hybrid([tmp_path / "a", dense_index], tmp_path / "both")
    edit_json(tmp_path / "a/manifest.json", lambda manifest: manifest["corpus"].update(sha256="0" * 64))
    with pytest.raises(UserError, match="corpus sha256.*0000.*build both of the same corpus"):
        IndexSource.open(tmp_path / "both", device="cpu")


def test_a_part_that_is_a_hybrid_by_now_is_refused_at_start(bm25_index, dense_index, tmp_path):
    shutil.copytree(bm25_index, tmp_path / "a")
    build_hybrid([tmp_path / "a", dense_index], tmp_path / "both")
    shutil.rmtree(tmp_path / "a")
    build_hybrid([bm25_index, dense_index], tmp_path / "a")
    with pytest.raises(UserError, match="a: it is itself a hybrid index by now"):
        IndexSource.open(tmp_path / "both", device="cpu")


def test_if_a_part_does_not_open_the_others_are_closed(hybrid_index):
    first, manifest = Mock(), read_manifest(hybrid_index)
    with pytest.raises(UserError, match="broken"):
        open_members(hybrid_index, manifest, False, Mock(side_effect=[first, UserError("broken")]))
    first.close.assert_called_once_with()


def test_a_reload_may_not_open_a_hybrid_of_indexes_outside_the_root(hybrid_index):
    place = IndexLocation(hybrid_index)
    inside = Reloader({"default": place}, lambda _: None, root=Path(hybrid_index.anchor))
    assert inside.resolve("default", str(hybrid_index), None).path == hybrid_index.resolve()
    narrow = Reloader({"default": place}, lambda _: None, root=hybrid_index.parent)
    with pytest.raises(OutsideRootError, match="--reload-root"):
        narrow.resolve("default", hybrid_index.name, None)
