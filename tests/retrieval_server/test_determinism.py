from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from retrieval_server.determinism import Determinism, ProbeResult, combine_probes, weakest_determinism
from retrieval_server.encode.batch_probe import probe_model, product_digest
from retrieval_server.encode.encoder import Encoder
from retrieval_server.encode.options import EncoderOptions
from retrieval_server.search.index_source import IndexSource

from .running import run_python
from .same_answers import assert_same_answers

BITS, ORDER, NONE = Determinism
WEIGHT = torch.randn(48, 384, generator=torch.Generator().manual_seed(1))
ONE_PROBE = """
from retrieval_server.encode.cpu_settings import set_mkl_reproducible
set_mkl_reproducible()
import os, torch
from retrieval_server.encode.batch_probe import probe_model
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(384, 1536), torch.nn.Linear(1536, 384))
print(os.environ["MKL_CBWR"], probe_model(model).guarantee)
rows = torch.randn(2, 384)
print(torch.equal(model[0](rows)[:1], model[0](rows[:1])))
"""


def row_by_row(texts, weight, bias=None):
    """A product that no batch can change, on any processor: float64, and each output added up by itself."""
    rows = texts.double().reshape(-1, texts.shape[-1])
    return torch.stack([(row * weight).sum(-1) for row in rows]).reshape(*texts.shape[:-1], -1).float()


def test_a_product_that_no_batch_changes_is_the_same_bits_and_one_that_rounds_by_batch_is_not():
    def by_batch(texts, weight, bias=None):
        return row_by_row(texts, weight) * (1 + 2**-23 * (len(texts) > 1))

    def in_the_last_row_only(texts, weight, bias=None):
        product = row_by_row(texts, weight)
        product[-1, -1, -1] *= 1 + 2**-22 * (len(texts) > 8)
        return product

    digest = product_digest(WEIGHT, multiply=row_by_row)
    assert digest and digest == product_digest(WEIGHT, multiply=row_by_row), "the rows are always the same"
    assert product_digest(WEIGHT, multiply=by_batch) is None
    assert product_digest(WEIGHT, multiply=in_the_last_row_only) is None
    assert digest != product_digest(WEIGHT + 1, multiply=row_by_row)


def probed_in_a_process(**environment: str) -> tuple[list[str], bool]:
    words, row_is_the_same = run_python(ONE_PROBE, **environment).splitlines()
    return words.split(), row_is_the_same == "True"


needs_mkl = pytest.mark.skipif(
    not torch.backends.mkl.is_available(),
    reason="left out: this torch does not multiply with Intel MKL, so MKL_CBWR changes nothing",
)


@pytest.mark.slow
@needs_mkl
def test_without_mkls_strict_mode_the_weaker_guarantee_is_found_and_the_users_setting_stays():
    words, row_is_the_same = probed_in_a_process(MKL_CBWR="OFF")
    assert words == ["OFF", "order"]
    assert not row_is_the_same, "what the probe says is so"


def is_intel() -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.is_file() and "GenuineIntel" in cpuinfo.read_text()


@pytest.mark.slow
@needs_mkl
@pytest.mark.skipif(not is_intel(), reason="left out: MKL's strict mode holds on Intel's processors only")
def test_on_an_intel_processor_the_server_guarantees_bits(monkeypatch):
    """Else every test that compares answers would quietly ask for less."""
    monkeypatch.delenv("MKL_CBWR", raising=False)
    words, row_is_the_same = probed_in_a_process()
    assert words == ["AUTO,STRICT", "bits"] and row_is_the_same


def test_sixteen_bits_guarantee_no_order_and_a_model_without_products_guarantees_bits(monkeypatch):
    monkeypatch.setattr("retrieval_server.encode.batch_probe.product_digest", lambda *_: None)
    layer = torch.nn.Linear(4, 4)
    assert probe_model(layer).guarantee is ORDER
    assert probe_model(layer.to(torch.bfloat16)).guarantee is NONE
    assert probe_model(torch.nn.Embedding(4, 4)).guarantee is BITS


def test_elsewhere_than_on_a_processor_bits_are_never_guaranteed():
    layer = torch.nn.Linear(4, 4, device="meta")
    assert probe_model(layer) == ProbeResult(ORDER)
    assert probe_model(layer.to(torch.float16)) == ProbeResult(NONE)


@given(st.lists(st.sampled_from(Determinism)))
def test_the_weakest_of_several_is_as_weak_as_each(several):
    strongest_first = [BITS, ORDER, NONE]
    places = [strongest_first.index(each) for each in several]
    assert strongest_first.index(weakest_determinism(several)) == max(places, default=0)


def test_processes_that_multiply_differently_do_not_guarantee_bits_together():
    first, second = ProbeResult(BITS, "a"), ProbeResult(BITS, "b")
    assert combine_probes([first]) is combine_probes([first, first]) is BITS
    assert combine_probes([first, second]) is ORDER
    assert combine_probes([first, ProbeResult(ORDER, "a")]) is ORDER
    assert combine_probes([first, second, ProbeResult(NONE, "c")]) is NONE


def test_in_16_or_8_bits_they_guarantee_nothing_together():
    first, second = ProbeResult(BITS, "a", fallback=NONE), ProbeResult(BITS, "b", fallback=NONE)
    assert combine_probes([first, first]) is BITS
    assert combine_probes([first, second]) is NONE


@pytest.mark.parametrize("dtype, fallback", [(torch.float32, ORDER), (torch.bfloat16, NONE)])
def test_a_probe_that_finds_bits_tells_what_its_data_type_allows_without_them(dtype, fallback, monkeypatch):
    monkeypatch.setattr("retrieval_server.encode.batch_probe.product_digest", lambda *_: "a")
    results = probe_model(torch.nn.Linear(4, 4).to(dtype))
    assert (results.guarantee, results.without_bits().guarantee) == (BITS, fallback)


def test_an_encoder_that_pads_to_the_longest_neighbour_guarantees_no_bits(tiny_bge):
    encoder = Encoder.create(str(tiny_bge), EncoderOptions(), device="cpu")
    alike = encoder.probed
    second = Encoder.open(encoder.section, device="cpu")
    assert second.probed == alike, "the same model in the same process"
    padded = Encoder.open(encoder.section, device="cpu")
    padded._model.truncate_dim = 16
    assert padded.probed.guarantee is ORDER
    halves = Encoder.open(encoder.section, device="cpu", dtype="bfloat16")
    halves._model.truncate_dim = 16
    assert halves.probed.guarantee is NONE


def test_ready_and_the_log_tell_the_guarantee(bm25, dense_index, serve, caplog):
    caplog.set_level("INFO", "retrieval_server.server.indexes")
    dense = IndexSource.open(dense_index, device="cpu")
    weak = IndexSource.open(dense_index, device="cpu")
    weak._backend.guarantee = ORDER
    with serve({"words": lambda: bm25, "dense": lambda: dense, "weak": lambda: weak}) as client:
        ready = client.get("/ready").json()
    assert ready["guarantee"] == ready["indexes"]["words"]["guarantee"] == "bits"
    assert ready["indexes"]["dense"]["guarantee"] == dense.description.guarantee
    assert ready["indexes"]["weak"]["guarantee"] == "order"
    assert "index weak guarantees order" in caplog.text and "within 1e-06" in caplog.text


HITS = [("a", 0.9), ("b", 0.5), ("c", 0.5 - 4e-7), ("d", 0.1)]


@pytest.mark.parametrize(
    "answer, refused",
    [
        (HITS, False),
        ([("a", 0.9 + 5e-7), ("c", 0.5), ("b", 0.5 - 4e-7), ("d", 0.1)], False),
        ([*HITS[:3], ("e", 0.1)], False),  # as good as d, and cut off there
        (HITS[:3], True),  # too short
        ([("b", 0.9), ("a", 0.5), *HITS[2:]], True),
        ([("a", 0.9 + 3e-6), *HITS[1:]], True),
        ([("a", 0.9), ("e", 0.5), *HITS[2:]], True),  # a stranger in the middle
        ([*HITS[:2], ("b", 0.5 - 4e-7), HITS[3]], True),  # one twice
    ],
)
def test_order_lets_ties_change_places_and_bits_does_not(answer, refused):
    with pytest.raises(AssertionError) if refused else nullcontext():
        assert_same_answers([answer], [HITS], "order")
    if answer != HITS:
        with pytest.raises(AssertionError):
            assert_same_answers([answer], [HITS], "bits")
