"""The batches that veRL's SFT trainer gets: exactly the policy's tokens are trained.

The data set is made as veRL makes it, from the recipes' `data.custom_cls`, and batches with veRL's own
collate function. Records come from real episodes with hostile documents
(tests/evaluation/made_traces.py).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from verl.utils.dataset.dataset_utils import SFTTensorCollator

from rag_r1.agent import Ledger, TrainingRow, Trajectory
from rag_r1.data.sft_rows import write_sft_rows
from rag_r1.data.sft_tokens import SftTokens
from rag_r1.io.errors import DataError
from rag_r1.plugin.sft_dataset import SftDataset
from rag_r1.protocols import Protocol, load_protocol
from rag_r1.sft.segment import samples_of, trace_of
from tests.evaluation.made_traces import ANSWER, SEARCH, episodes, played, tokenizer
from tests.plugin.sft_batch_checks import only_the_policys_tokens_have_loss_weight
from tests.property_limits import at_most

Made = list[tuple[Trajectory, Ledger]]
CONFIG = {"max_length": 1 << 16, "truncation": "error", "pad_mode": "no_padding"}


@cache
def protocol_of(name: str) -> Protocol:
    """As it is for this tokenizer."""
    return SftTokens(tokenizer(), load_protocol(name)).protocol


def dataset(path: Path, played_episodes: Made, layout: str, **config) -> SftDataset:
    """The data set of these episodes' samples, in order."""
    rows = []
    for number, (record, _) in enumerate(played_episodes):
        protocol = protocol_of(record.protocol)
        rows += samples_of(trace_of(record, protocol, f"{number}"), protocol, layout)
    write_sft_rows(path, rows)
    return SftDataset(str(path), tokenizer(), OmegaConf.create({**CONFIG, **config}))


def batch_of(data: SftDataset) -> dict[str, torch.Tensor]:
    return SFTTensorCollator("no_padding")([data[place] for place in range(len(data))])


def expected(played_episodes: Made, layout: str) -> tuple[list[TrainingRow], list[int | None]]:
    """The rollouts of the samples, from the episodes' ledgers and not from the samples' text."""
    rollouts: list[TrainingRow] = []
    starts: list[int | None] = []
    for _, ledger in played_episodes:
        whole = ledger.row()
        if layout == "whole":
            rollouts.append(whole)
            starts.append(None)
            continue
        end = 0
        for span in ledger.spans():
            start, end = end, end + len(span.ids)
            if span.generated:
                mask = whole.response_mask[:end]
                rollouts.append(TrainingRow(whole.prompt_ids, whole.response_ids[:end], mask, None))
                starts.append(len(whole.prompt_ids) + start)
    return rollouts, starts


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> Path:
    """One file for all examples: to make a folder takes longer the more there are."""
    return tmp_path_factory.mktemp("rows") / "train.parquet"


@pytest.mark.slow
@settings(at_most(200), suppress_health_check=[HealthCheck.too_slow])
@given(drawn=st.lists(episodes(), min_size=1, max_size=3))
def test_exactly_the_policys_tokens_have_loss_weight(drawn, rows):
    alike = [episode for episode in drawn if episode[0].protocol == drawn[0][0].protocol]
    for layout in ("cut", "whole"):
        data = dataset(rows, alike, layout)
        only_the_policys_tokens_have_loss_weight(batch_of(data), *expected(alike, layout))


@pytest.mark.parametrize("layout", ["cut", "whole"])
@pytest.mark.parametrize("spoil", ["an observation", "the prompt", "a target left out", "the end", "shifted"])
def test_a_wrong_mask_is_found(layout, spoil, tmp_path):
    played_episodes = [played([SEARCH, ANSWER])]
    batch = batch_of(dataset(tmp_path / "train.parquet", played_episodes, layout))
    only_the_policys_tokens_have_loss_weight(batch, *expected(played_episodes, layout))
    masks = [mask.clone() for mask in batch["loss_mask"].unbind()]
    ids = batch["input_ids"].unbind()[-1].tolist()
    observed = tokenizer().encode("<information>", add_special_tokens=False)
    place = next(i for i in range(len(ids)) if ids[i : i + len(observed)] == observed and i > 200)
    if spoil == "an observation":
        masks[-1][place] = 1
    elif spoil == "the prompt":
        masks[-1][0] = 1
    elif spoil == "a target left out":
        masks[-1][len(ids) - 5] = 0
    elif spoil == "the end":
        batch["input_ids"] = torch.nested.as_nested_tensor(
            [
                torch.cat([row, torch.tensor([tokenizer().eos_token_id])])
                for row in batch["input_ids"].unbind()
            ],
            layout=torch.jagged,
        )
        masks = [torch.cat([mask, torch.tensor([1])]) for mask in masks]
    else:
        masks[-1] = torch.roll(masks[-1], -1)
    batch["loss_mask"] = torch.nested.as_nested_tensor(masks, layout=torch.jagged)
    with pytest.raises(AssertionError):
        only_the_policys_tokens_have_loss_weight(batch, *expected(played_episodes, layout))


@pytest.mark.parametrize("layout", ["cut", "whole"])
def test_verls_loss_takes_exactly_these_tokens(layout, tmp_path):
    """veRL shifts the mask by one over the whole batch; the gradient shows what is left of it."""
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.losses import sft_loss

    played_episodes = [played([SEARCH, SEARCH, ANSWER]), played([ANSWER], id="made/2")]
    batch = batch_of(dataset(tmp_path / "train.parquet", played_episodes, layout))
    offsets, trained = batch["loss_mask"].offsets(), batch["loss_mask"].values()
    scores = torch.zeros(len(trained), requires_grad=True)
    count = int(trained.sum())
    data = tu.get_tensordict(
        tensor_dict=batch,
        non_tensor_dict={"pad_mode": "no_padding", "dp_size": 1, "batch_num_tokens": count},
    )
    loss, _ = sft_loss(None, {"log_probs": torch.nested.nested_tensor_from_jagged(scores, offsets)}, data)
    loss.backward()
    # The score at a place is that of the next token.
    assert (scores.grad[:-1] != 0).tolist() == (trained[1:] == 1).tolist()
    assert scores.grad.sum().item() == pytest.approx(-1) and scores.grad[-1] == 0


@pytest.mark.slow
def test_verl_makes_it_from_the_recipes_keys(tmp_path):
    from verl.trainer.sft_trainer import create_sft_dataset

    data = dataset(tmp_path / "train.parquet", [played([SEARCH, ANSWER])], "cut")
    recipe = Path(__file__).parents[2] / "recipes" / "rag_r1" / "sft" / "_common.yaml"
    config = OmegaConf.load(recipe).data
    files = OmegaConf.create([str(tmp_path / "train.parquet")])
    by_verl = create_sft_dataset(files, config, tokenizer(), None, max_samples=1)
    assert type(by_verl).__name__ == "SftDataset" and len(by_verl) == 1
    assert by_verl[0]["loss_mask"].tolist() == data[0]["loss_mask"].tolist()


def test_a_row_that_is_too_long_is_named_and_never_cut(tmp_path):
    data = dataset(tmp_path / "train.parquet", [played([ANSWER])], "cut", max_length=50)
    with pytest.raises(DataError, match="'0/1' has .* tokens, more than data.max_length=50"):
        data[0]


@pytest.mark.parametrize("config", [{"pad_mode": "right"}, {"truncation": "left"}, {"protocol": "rag_r1_sq"}])
def test_settings_that_would_change_a_row_are_refused(tmp_path, config):
    with pytest.raises(DataError, match=f"data.{next(iter(config))}"):
        dataset(tmp_path / "train.parquet", [played([ANSWER])], "cut", **config)


def test_an_empty_file_is_refused(tmp_path):
    with pytest.raises(DataError, match="no rows"):
        dataset(tmp_path / "train.parquet", [], "cut")
