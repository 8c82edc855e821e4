"""Presets: what they make of a corpus, in one go or after an interruption, and what is said beforehand."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retrieval_server.encode.vector_files import VectorFiles
from retrieval_server.errors import UserError
from retrieval_server.folder.manifest import (
    FAISS_INDEX,
    ROWS,
    DenseSection,
    EncoderSection,
    RescoringSection,
    SearchSection,
)
from retrieval_server.folder.row_layout import RowLayout
from retrieval_server.indexing import dense_build, faiss_build
from retrieval_server.indexing.dense_build import write_rows
from retrieval_server.indexing.faiss_build import make_index, write_faiss_index
from retrieval_server.indexing.presets import MAX_CELLS, PRESETS, cells_for
from retrieval_server.indexing.resource_estimate import (
    ResourceEstimate,
    duration_text,
    estimate_bytes,
    print_estimate,
    size_text,
)
from retrieval_server.indexing.split_index import _split_compressed
from retrieval_server.indexing.work_files import keep_if_unchanged
from retrieval_server.search.dense import DenseBackend
from retrieval_server.search.options import OpenOptions
from retrieval_server.search.vectors.faiss_files import open_index

from ..running import python_process

DIMENSION, COUNT = 32, 700
COMPRESSED = ("balanced", "small")
ENCODER = EncoderSection(
    **dict.fromkeys(("query_prefix", "passage_prefix"), ""),
    **{"name": "none", "sha256": "0", "pooling": "mean", "separator": " "},
    **{"normalize": True, "max_length": 16, "dimension": DIMENSION},
)


def some_vectors(count: int = COUNT) -> np.ndarray:
    rows_of_noise = np.random.default_rng(0).standard_normal((count, DIMENSION)).astype(np.float32)
    return rows_of_noise / np.linalg.norm(rows_of_noise, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def encoded(tmp_path_factory) -> VectorFiles:
    path = tmp_path_factory.mktemp("encoded") / "vectors.f32"
    some_vectors().tofile(path)
    return VectorFiles([path], DIMENSION)


def built(encoded: VectorFiles, folder: Path, name: str) -> DenseSection:
    """The files of an index with this preset, and its section; what the builder does, without an encoder."""
    preset = PRESETS[name]
    rows = write_rows(encoded, folder / ROWS, preset.rescoring.rows)
    factory = preset.factory(len(rows), DIMENSION)
    write_faiss_index(rows, factory, folder / FAISS_INDEX)
    return DenseSection(
        encoder=ENCODER,
        metric="inner_product",
        factory=factory,
        preset=name,
        rescoring=preset.rescoring,
        search=SearchSection(nprobe=cells_for(len(rows))),
    )


@pytest.fixture(scope="module")
def compressed(encoded, tmp_path_factory) -> dict[str, tuple[Path, DenseSection]]:
    """A folder and section of each preset that compresses; nobody changes the files."""
    folders = {name: tmp_path_factory.mktemp(name) for name in COMPRESSED}
    return {name: (folder, built(encoded, folder, name)) for name, folder in folders.items()}


@given(passages=st.integers(1, 10**9))
def test_cells_are_a_power_of_two_within_the_limit_and_with_enough_to_train_on(passages):
    many = cells_for(passages)
    assert many & (many - 1) == 0 and 1 <= many <= MAX_CELLS
    assert many == 1 or passages >= 40 * many
    assert many >= cells_for(max(1, passages // 2))


@pytest.mark.parametrize("name", COMPRESSED)
def test_a_whole_wikipedia_has_a_graph_over_its_cells_and_a_small_corpus_none(name):
    assert "IVF16384_HNSW32" in PRESETS[name].factory(29_000_000, 768)
    assert "IVF64,RaBitQ" in PRESETS[name].factory(5000, 768)
    index = make_index(PRESETS[name].factory(20, DIMENSION), DIMENSION)
    index.train(some_vectors(20))
    index.add(some_vectors(20))
    assert index.ntotal == 20


def test_small_takes_a_wikipedia_of_29_million_passages_into_half_of_8_gb():
    needs = estimate_bytes(PRESETS["small"], 29_000_000, 768)
    assert needs.memory_bytes < 4e9 and needs.memory_bytes / 29_000_000 < 130
    assert estimate_bytes(PRESETS["exact"], 29_000_000, 768).memory_bytes == 29_000_000 * 768 * 4
    larger = estimate_bytes(PRESETS["small"], 29_000_000, 768, train_sample=9_000_000)
    assert larger.build_memory_bytes == 3 * 9_000_000 * 768 * 4 > needs.build_memory_bytes


@pytest.mark.parametrize("name", COMPRESSED)
def test_the_needs_that_are_announced_are_those_of_the_files(compressed, name):
    folder, _ = compressed[name]
    needs = estimate_bytes(PRESETS[name], COUNT, DIMENSION)
    index = (folder / FAISS_INDEX).stat().st_size
    assert needs.memory_bytes == pytest.approx(index, abs=2000), "FAISS's headers apart"
    assert needs.disk_bytes >= index + (folder / ROWS).stat().st_size


def test_a_disk_that_is_too_small_is_refused_before_the_build_with_both_sizes(tmp_path, capsys):
    needs = ResourceEstimate(
        memory_bytes=10**9,
        process_bytes=10**9,
        build_memory_bytes=10**9,
        disk_bytes=10**18,
        index_s=90.0,
        encode_s=7200.0,
    )
    with pytest.raises(UserError, match="--preset small.*free.*1000000000.0 GB"):
        print_estimate(PRESETS["small"], 29_000_000, 768, needs, tmp_path)
    printed = capsys.readouterr().out
    assert "29000000 passages of 768 dimensions" in printed and "IVF16384_HNSW32" in printed
    assert "1.0 GB for the index" in printed and "120 min" not in printed and "2 h" in printed


def test_what_an_interrupted_build_has_written_is_not_asked_for_again(tmp_path):
    needs = ResourceEstimate(
        memory_bytes=1, process_bytes=1, build_memory_bytes=1, disk_bytes=10**18, index_s=0.0
    )
    print_estimate(PRESETS["small"], 2000, 768, needs, tmp_path, stored=10**18)


def test_sizes_and_durations_are_in_units_that_people_read():
    assert [size_text(number) for number in (12, 12_345, 3.25e9)] == ["12 B", "12 kB", "3.2 GB"]
    durations = [duration_text(seconds) for seconds in (0, 89, 91, 3600, 7200, 10 * 86400)]
    assert durations == ["1 s", "89 s", "2 min", "60 min", "2 h", "10 days"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kind=st.sampled_from(["float16", "int8"]), left=st.integers(0, 40_000), block=st.integers(1, COUNT))
def test_rows_are_stored_the_same_in_blocks_and_after_an_interruption(
    encoded, tmp_path_factory, kind, left, block
):
    """``left``: bytes that an interrupted build has written."""
    whole = RowLayout(DIMENSION, kind).encode(encoded[:])
    path = tmp_path_factory.mktemp("rows") / ROWS
    path.write_bytes(whole[:left])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense_build, "_BLOCK", block)
        rows = write_rows(encoded, path, kind)
    assert path.read_bytes() == whole and len(rows) == COUNT
    copied = write_rows(rows, path.with_name("copy"), kind)
    assert copied.files[0].read_bytes() == whole, "parts in the type of the rows stay as they are"


@pytest.mark.parametrize("value, reason", [(1e6, "--preset small or exact"), (np.inf, "No index can be")])
def test_embeddings_that_16_bits_cannot_hold_are_named_with_a_remedy_that_helps(tmp_path, value, reason):
    vectors = some_vectors(300)
    vectors[290, 3] = value
    vectors.tofile(tmp_path / "vectors.f32")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense_build, "_BLOCK", 100)
        with pytest.raises(UserError, match=f"vector 290 .*{reason}"):
            write_rows(VectorFiles([tmp_path / "vectors.f32"], DIMENSION), tmp_path / ROWS, "float16")


class Stops(VectorFiles):
    """Vectors whose reading is interrupted at row ``at``; ``read`` are the first rows of the blocks read."""

    at = 0

    def __getitem__(self, rows: slice) -> np.ndarray:
        if rows.start is not None and rows.start >= self.at:
            raise KeyboardInterrupt
        self.read = [*getattr(self, "read", ()), rows.start]
        return super().__getitem__(rows)


@pytest.mark.parametrize("name", COMPRESSED)
@pytest.mark.parametrize("at", [0, 100, 450])
def test_an_interrupted_index_goes_on_and_ends_in_the_same_bytes(encoded, tmp_path, monkeypatch, name, at):
    factory = PRESETS[name].factory(COUNT, DIMENSION)
    monkeypatch.setattr(faiss_build, "_BLOCK", 50)
    monkeypatch.setattr(faiss_build, "SAVE_INTERVAL", 200)
    write_faiss_index(encoded, factory, tmp_path / "in one go")
    stops = Stops(encoded.files, DIMENSION)
    stops.at = at
    with pytest.raises(KeyboardInterrupt):
        write_faiss_index(stops, factory, tmp_path / "index", checkpoint=tmp_path / "half")
    assert not (tmp_path / "index").exists()
    assert faiss.read_index(str(tmp_path / "half")).ntotal == at // 200 * 200
    stops.at, stops.read = COUNT + 1, []
    write_faiss_index(stops, factory, tmp_path / "index", checkpoint=tmp_path / "half")
    assert stops.read == list(range(at // 200 * 200, COUNT, 50)), "neither trained nor added again"
    assert (tmp_path / "index").read_bytes() == (tmp_path / "in one go").read_bytes()


def test_what_is_left_of_another_build_is_removed(tmp_path):
    for origin, stays in (({"corpus": "a"}, False), ({"corpus": "a"}, True), ({"corpus": "b"}, False)):
        keep_if_unchanged(tmp_path, "rows", origin)
        assert (tmp_path / "rows").exists() == stays
        (tmp_path / "rows").write_text("x")
    keep_if_unchanged(tmp_path, "index", {"factory": "f"})
    assert (tmp_path / "rows").exists(), "each file has its own origin"
    (tmp_path / "progress.json").write_text("[half a file")
    keep_if_unchanged(tmp_path, "rows", {"corpus": "b"})
    assert not (tmp_path / "rows").exists()


def test_a_setting_that_the_new_build_does_not_have_is_named(tmp_path, caplog):
    keep_if_unchanged(tmp_path, "rows", {"corpus": "a", "tokens": 512})
    (tmp_path / "rows").write_text("x")
    keep_if_unchanged(tmp_path, "rows", {"corpus": "a"})
    assert "of another tokens than before" in caplog.text and not (tmp_path / "rows").exists()


@pytest.mark.parametrize("name", COMPRESSED)
@pytest.mark.parametrize("mapped", [None, False])
def test_a_compressed_index_finds_a_passage_by_its_own_vector(encoded, compressed, name, mapped):
    folder, section = compressed[name]
    backend = DenseBackend(folder / FAISS_INDEX, section, COUNT, None, OpenOptions(mmap=mapped))
    assert [hits[0].row for hits in backend.find(encoded[:][::5], 3)] == list(range(0, COUNT, 5))
    if mapped is None:
        backend._prefetch.wait()
    assert backend.paged_in == (1.0 if mapped is None else None), "mapped by default, and read ahead"
    backend.close()


def test_parts_of_an_index_that_do_not_fit_are_refused(compressed, tmp_path):
    folder, section = compressed["small"]
    path = shutil.copytree(folder, tmp_path, dirs_exist_ok=True) / FAISS_INDEX
    other_rows = section.model_copy(update={"rescoring": RescoringSection(rows="float16", candidates=9)})
    with pytest.raises(UserError, match=f"vectors.rows: {COUNT} rows .* in float16"):
        DenseBackend(path, other_rows, COUNT, None)
    with pytest.raises(UserError, match="vectors: the manifest says 699, found 700"):
        DenseBackend(path, section, COUNT - 1, None)
    (tmp_path / ROWS).unlink()
    with pytest.raises(UserError, match="vectors.rows: cannot be read"):
        DenseBackend(path, section, COUNT, None)


def test_candidates_and_gpus_are_refused_where_they_have_no_use(compressed):
    folder, section = compressed["small"]
    path = folder / FAISS_INDEX
    with pytest.raises(UserError, match="--gpu on.*compressed"):
        DenseBackend(path, section, COUNT, None, OpenOptions(gpu="on"))
    plain = section.model_copy(update={"rescoring": None, "preset": None})
    with pytest.raises(UserError, match="--candidates 9.*--preset balanced or small"):
        DenseBackend(path, plain, COUNT, None, OpenOptions(candidates=9))


_OTHER_SERVER = """
import sys
from pathlib import Path
import numpy as np
from retrieval_server.search.vectors.faiss_files import open_index
index = open_index(Path(sys.argv[1]), mapped=True)
index.search(np.ones((1, index.d), np.float32), 10)
print("searched", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which only Linux has")
def test_processes_that_map_an_index_share_its_pages(tmp_path):
    """Of 20,000 vectors, so that the cells are larger than what FAISS reads of a file in any case."""
    vectors = np.random.default_rng(0).standard_normal((20_000, DIMENSION)).astype(np.float32)
    vectors.tofile(tmp_path / "vectors.f32")
    path = tmp_path / FAISS_INDEX
    write_faiss_index(VectorFiles([tmp_path / "vectors.f32"], DIMENSION), f"RR{DIMENSION},IVF1,RaBitQ", path)
    with python_process(_OTHER_SERVER, path):
        index = open_index(path, mapped=True)
        index.search(vectors[:1], 10)
        mapping = Path("/proc/self/smaps").read_text().partition(str(path))[2]
        resident, share = (int(mapping.partition(f"\n{key}:")[2].split()[0]) for key in ("Rss", "Pss"))
    assert resident * 1024 > 0.8 * path.stat().st_size, "the cells lie in the mapping"
    assert share < 0.6 * resident, "of which each process counts half"


@pytest.mark.parametrize("name", COMPRESSED)
def test_shards_together_find_at_least_what_the_whole_index_finds(compressed, tmp_path, name):
    """With few candidates the whole misses some; two shards look at twice as many."""
    index, section = compressed[name]
    layout = RowLayout(DIMENSION, section.rescoring.rows)
    few = OpenOptions(candidates=20)
    queries = some_vectors(40) + np.float32(0.1)

    def scores(folder: Path, count: int) -> np.ndarray:
        backend = DenseBackend(folder / FAISS_INDEX, section, count, None, few)
        results = backend.find(queries, 10)
        backend.close()
        return np.array([[hit.score for hit in hits] for hits in results])

    halves = []
    for number, rows in enumerate((range(0, 300), range(300, COUNT))):
        folder = tmp_path / str(number)
        folder.mkdir()
        _split_compressed(index, rows, folder, layout)
        halves.append(scores(folder, len(rows)))
    together = -np.sort(-np.concatenate(halves, axis=1), axis=1)[:, :10]
    whole = scores(index, COUNT)
    assert (together >= whole).all() and (together > whole).any()
