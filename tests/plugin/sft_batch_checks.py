"""What must hold of a batch that veRL's SFT trainer trains on, as a function that fails at any other mask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from rag_r1.agent import TrainingRow


def only_the_policys_tokens_have_loss_weight(
    batch: Mapping[str, torch.Tensor], rollouts: Sequence[TrainingRow], last_only: Sequence[int | None]
) -> None:
    """Row by row, the batch has the tokens of a rollout and weight 1 exactly where the policy generated them.

    `rollouts`: the rows of the episodes' ledgers, cut after the target. `last_only`: where the target begins
    if only the last turn is trained (the layout `cut`), else None.
    """
    rows = [batch[name].unbind() for name in ("input_ids", "loss_mask", "position_ids")]
    assert [len(of) for of in rows] == [len(rollouts)] * 3
    for ids, mask, positions, rollout, start in zip(*rows, rollouts, last_only, strict=True):
        whole = rollout.prompt_ids + rollout.response_ids
        generated = [0] * len(rollout.prompt_ids) + rollout.response_mask
        if start is not None:
            generated = [0] * start + generated[start:]
        assert ids.tolist() == whole
        assert mask.tolist() == generated
        assert positions.tolist() == list(range(len(whole)))
