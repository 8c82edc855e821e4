"""The retriever's loss: the formula against a computation by hand, and which passages are never negatives."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_r1.retriever.training.loss import NO_PASSAGE, BatchTable, RetrieverLoss, cosines, info_nce, rank_loss
from tests.retriever.two_devices import Lookup, columns


def by_hand(queries, passages, numbers, targets, positives, temperature):
    """The loss of each query, with plain loops."""

    def cosine(a, b):
        norms = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(x * x for x in b))
        return sum(x * y for x, y in zip(a, b, strict=True)) / norms

    losses = []
    for query, place, known in zip(queries, targets, positives, strict=True):
        exponents = [
            cosine(query, passage) / temperature
            for i, (passage, number) in enumerate(zip(passages, numbers, strict=True))
            if i == place or number not in known
        ]
        largest = max(exponents)
        log_sum = largest + math.log(sum(math.exp(x - largest) for x in exponents))
        losses.append(log_sum - cosine(query, passages[place]) / temperature)
    return losses


def test_two_queries_with_a_shared_positive_by_hand():
    queries = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    passages = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    # Passage 7 is at places 0 and 2: for the first query it is known, so only passage 8 is a negative.
    losses = info_nce(
        queries,
        passages,
        numbers=torch.tensor([7, 8, 7]),
        targets=torch.tensor([0, 1]),
        positives=torch.tensor([[7, NO_PASSAGE], [8, NO_PASSAGE]]),
        temperature=0.5,
    )
    first = math.log(1 + math.exp(-2.0))
    second = math.log(1 + math.exp(-2.0) + math.exp(2 / math.sqrt(2) - 2.0))
    assert losses.tolist() == pytest.approx([first, second], rel=1e-5)


@st.composite
def batches(draw):
    """A batch: vectors, numbers of passages, the positive of each query, and what is known to answer it."""
    rows, columns, largest = draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    queries = torch.randn(rows, 3, generator=generator)
    passages = torch.randn(rows * columns, 3, generator=generator)
    number = st.integers(0, 6)
    numbers = draw(st.lists(number, min_size=rows * columns, max_size=rows * columns))
    others = st.lists(number | st.just(NO_PASSAGE), min_size=largest, max_size=largest)
    positives = [[numbers[row], *draw(others)] for row in range(rows)]
    return queries, passages, numbers, list(range(rows)), positives


@settings(deadline=None, max_examples=60)
@given(batches(), st.sampled_from([0.01, 0.05, 1.0]))
def test_the_loss_is_the_formula_over_passages_that_are_not_known(batch, temperature):
    queries, passages, numbers, targets, positives = batch
    losses = info_nce(
        queries, passages, torch.tensor(numbers), torch.tensor(targets), torch.tensor(positives), temperature
    )
    expected = by_hand(queries.tolist(), passages.tolist(), numbers, targets, positives, temperature)
    assert losses.tolist() == pytest.approx(expected, rel=1e-3, abs=1e-3)


@settings(deadline=None, max_examples=60)
@given(batches())
def test_a_known_positive_gets_no_gradient_as_a_negative(batch):
    queries, passages, numbers, targets, positives = batch
    passages.requires_grad_()
    loss = info_nce(
        queries, passages, torch.tensor(numbers), torch.tensor(targets), torch.tensor(positives), 0.1
    )
    for row, known in enumerate(positives):
        (gradient,) = torch.autograd.grad(loss[row], passages, retain_graph=True)
        for place, number in enumerate(numbers):
            if place != row and number in known:
                assert not gradient[place].any()


def test_at_a_low_temperature_the_logits_are_those_of_float32():
    vectors = torch.tensor([[1.0, 0.004], [1.0, 0.02]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = cosines(vectors.bfloat16(), vectors)
    assert actual.dtype == torch.float32
    assert torch.equal(actual, cosines(vectors.bfloat16().float(), vectors))


def test_the_rank_loss_is_zero_for_the_order_by_relevance_and_above_it_otherwise():
    relevance = torch.tensor([[1.0, 0.5, 0.0]])
    right = relevance / 0.1 * 0.01  # cosines whose softmax is that of the relevance
    assert rank_loss(right, relevance, 0.01, 0.1).item() == pytest.approx(0.0, abs=1e-6)
    assert rank_loss(right.flip(-1), relevance, 0.01, 0.1).item() > 1.0


#: Three rows of a query, a positive and a negative; rows 0 and 2 are about one query, with two positives.
TABLE = BatchTable.of(
    passages=[[0, 1], [1, 2], [3, 0]],
    queries=[0, 1, 0],
    positives=[[0, 3], [1]],
    relevance=[[1.0, 0.2], [0.9, 0.1], [1.0, 0.3]],
)


def test_what_is_known_of_a_query_is_filled_up_to_the_most_of_the_batch():
    assert TABLE.all_positives(torch.tensor([1, 2])).tolist() == [[1, NO_PASSAGE], [0, 3]]
    assert TABLE.all_positives(torch.tensor([1])).tolist() == [[1]]


def test_the_table_lies_where_the_model_is_and_in_no_checkpoint():
    loss = RetrieverLoss(Lookup(torch.ones(1, 2)), TABLE)
    assert list(loss.state_dict()) == ["model.vectors"]
    moved = loss.to("meta").table
    assert {tensor.device.type for tensor in vars(moved).values()} == {"meta"}


@pytest.mark.parametrize("mini_batch", [None, 2])
@pytest.mark.parametrize("rank_weight", [0.0, 0.5])
def test_a_batch_of_rows_in_any_order_has_the_loss_of_its_table(mini_batch, rank_weight):
    vectors = torch.randn(7, 4, generator=torch.Generator().manual_seed(1))
    model = Lookup(vectors.clone())
    loss = RetrieverLoss(model, TABLE, temperature=0.2, rank_weight=rank_weight, mini_batch=mini_batch)
    labels = torch.tensor([2, 0, 1])
    # Vectors 0 to 3 are the passages by number, 4 to 6 the queries of rows 0 to 2.
    value = loss(columns(4 + labels, TABLE.passages[labels, 0], TABLE.passages[labels, 1]), labels)
    value.backward()

    numbers = [*TABLE.passages[labels, 0].tolist(), *TABLE.passages[labels, 1].tolist()]
    queries, known = vectors[4 + labels].tolist(), TABLE.all_positives(labels).tolist()
    expected = by_hand(queries, vectors[numbers].tolist(), numbers, [0, 1, 2], known, 0.2)
    mean = sum(expected) / 3
    if rank_weight:
        cosine = cosines(vectors[4 + labels], vectors[:4]).gather(1, TABLE.passages[labels])
        mean += rank_weight * rank_loss(cosine, TABLE.relevance[labels], 0.2, 0.1).mean().item()
    assert value.item() == pytest.approx(mean, rel=1e-4)
    plain = Lookup(vectors.clone())
    whole = RetrieverLoss(plain, TABLE, temperature=0.2, rank_weight=rank_weight)
    whole(columns(4 + labels, TABLE.passages[labels, 0], TABLE.passages[labels, 1]), labels).backward()
    assert torch.allclose(model.vectors.grad, plain.vectors.grad, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("mini_batch", [None, 1])
def test_two_devices_have_the_loss_and_the_gradient_of_one(tmp_path: Path, mini_batch):
    vectors = torch.randn(10, 4, generator=torch.Generator().manual_seed(2))
    table = BatchTable.of(
        passages=[[0, 1], [1, 2], [3, 4], [5, 0]],
        queries=[0, 1, 2, 3],
        # The positive of row 3, on the other device, also answers the query of row 0.
        positives=[[0, 5], [1], [3, 1], [5, 0]],
        relevance=[[0.0, 0.0]] * 4,
    )
    batch = {"vectors": vectors, "table": [*vars(table).values()], "mini_batch": mini_batch}
    torch.save(batch, tmp_path / "batch.pt")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = Path(__file__).parents[1] / "two_devices.py"
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    halves = [
        subprocess.Popen([sys.executable, script, tmp_path], env={**os.environ, **address, "RANK": str(rank)})
        for rank in range(2)
    ]
    try:
        assert [half.wait(120) for half in halves] == [0, 0]
    finally:
        for half in halves:
            half.kill()
            half.wait()
    results = [torch.load(tmp_path / f"half{rank}.pt", weights_only=True) for rank in range(2)]

    model, labels = Lookup(vectors.clone()), torch.arange(4)
    whole = RetrieverLoss(model, table, temperature=0.2)(columns(6 + labels, *table.passages.T), labels)
    whole.backward()
    assert sum(half["loss"] for half in results).item() / 2 == pytest.approx(whole.item(), rel=1e-5)
    # DDP takes the mean of the devices' gradients.
    mean = sum(half["gradient"] for half in results) / 2
    assert torch.allclose(mean, model.vectors.grad, atol=1e-6)
