"""Groups the rows of each trajectory into a session, and lays out batches of whole sessions.

A trajectory whose context is rewritten (memory, summary, folding) is trained as several rows, and together
they are a session. veRL names the rows `<prompt>_<session>_<row>` (agent_loop_tq.py,
`_agent_loop_postprocess`) and mostly counts rows. But a trajectory's weight in its group, the weight of its
tokens in every loss and the number of updates of a step must not depend on its number of rows. All functions
here only work on keys and numbers; a "row" is the key of a row.

These places in veRL 0.9.1 matter, under verl/:

- trainer/ppo/v1/trainer_base.py, `_update_actor`, `_update_critic`, `_get_required_batch_multiple`: a
  mini-batch has `ppo_mini_batch_size * rollout.n` rows, so more rows would mean more updates.
- the same file, `_balance_batch`: rows are distributed over the ranks by their lengths alone, and
  workers/engine_workers.py, `train_mini_batch`: each rank cuts its rows into mini-batches in order. So the
  rows of a trajectory would end up in different updates.
- workers/engine/fsdp/transformer_impl.py, `forward_backward_batch`: `token-mean` divides by the generated
  tokens of the mini-batch, over all ranks. So a token's weight is right if the mini-batches have the right
  trajectories; masked rows contribute neither to the numerator nor to the denominator.
- trainer/ppo/v1/utils.py, `compute_advantage_for_multi_trajectories`: GRPO uses the last row of a session for
  all its rows, and reads the advantage at that row's first generated token. If there is none, all rows get 0.
- trainer/ppo/core_algos.py, `compute_gae_advantage_return`: a reward on a token that was not generated is
  lost, and veRL puts the reward on the last token of a row.

`mini_batches`, `padded_row_count` and `rank_shares` lay out a batch so that this code gives the right result:
each mini-batch has the same trajectories as with one row each, and all have the same number of rows, filled
up with masked rows (session_trainer.py). `trained_rows` and `move_rewards` prepare the rows for the
advantages (sampler.py). Losses and estimators that count rows in other ways are refused before the run
(rag_r1/training/preflight/sessions.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def session_of(key: str) -> str:
    """Return the session, `<prompt>_<session>`, of the row with this key."""
    return key.rpartition("_")[0]


def prompt_of(key: str) -> str:
    """Return the prompt of a row's or a session's key. Prompts are UUIDs, which have no underscore."""
    return key.partition("_")[0]


def group_by_session(keys: Sequence[str]) -> dict[str, list[str]]:
    """Return the keys of each session in the order of its rows. Sessions are in the order of their first
    keys."""
    sessions: dict[str, list[str]] = {}
    for key in keys:
        sessions.setdefault(session_of(key), []).append(key)
    return {name: sorted(rows, key=lambda row: int(row.split("_")[-1])) for name, rows in sessions.items()}


def last_rows(keys: Sequence[str]) -> list[str]:
    """Return the last row of each session, which represents all of its rows, since they share its reward."""
    return [rows[-1] for rows in group_by_session(keys).values()]


def trained_rows(keys: Sequence[str], generated: Mapping[str, bool]) -> list[str]:
    """Return `keys`, in order, without the rows in which nothing was generated.

    `generated` says for each key whether anything was. There is nothing to train in such a row, and as the
    last one of its session it would set the advantage to 0. A session in which nothing was generated at all
    keeps its last row, and with it its weight in the group.
    """
    kept_rows: set[str] = set()
    for rows in group_by_session(keys).values():
        kept_rows.update([key for key in rows if generated[key]] or rows[-1:])
    return [key for key in keys if key in kept_rows]


def move_rewards(rewards: Sequence[float], mask: Sequence[int]) -> list[float]:
    """Return the rewards of a row's tokens, with those after the last generated token (`mask` 1) moved onto
    that token. The rewards of a row without a generated token are unchanged."""
    new_rewards = list(rewards)
    last_generated = max((i for i, bit in enumerate(mask) if bit), default=None)
    if last_generated is not None and any(new_rewards[last_generated + 1 :]):
        new_rewards[last_generated] += sum(new_rewards[last_generated + 1 :])
        new_rewards[last_generated + 1 :] = [0.0] * len(new_rewards[last_generated + 1 :])
    return new_rewards


def mini_batches(keys: Sequence[str], size: int) -> list[list[str]]:
    """Return the rows of each mini-batch, which has `size` whole sessions; the last one has the remaining
    ones. Which sessions a mini-batch has depends on the order of the keys only, not on their numbers of
    rows."""
    sessions = list(group_by_session(keys).values())
    return [
        [row for rows in sessions[start : start + size] for row in rows]
        for start in range(0, len(sessions), size)
    ]


def padded_row_count(batches: Sequence[Sequence[str]], multiple: int) -> int:
    """Return the number of rows to which all mini-batches are padded: that of the longest one, rounded up to
    a multiple of `multiple`, which is the number of ranks times the rows of a micro-batch."""
    return math.ceil(max(map(len, batches)) / multiple) * multiple


def rank_shares(
    batches: Sequence[Sequence[str]], padding: Sequence[str], ranks: int, lengths: Mapping[str, int]
) -> list[list[str]]:
    """Return the rows of each rank, in the order in which the rank cuts them into mini-batches.

    The rows of `batches` and the padding are distributed so that all mini-batches have the same number of
    rows, and all ranks the same number of rows of each, with about the same number of tokens (`lengths`).
    Raises ValueError if that is impossible.
    """
    size, remainder = divmod(sum(map(len, batches)) + len(padding), len(batches))
    if remainder or size % ranks or any(len(batch) > size for batch in batches):
        sizes = [len(batch) for batch in batches]
        raise ValueError(
            f"{len(padding)} padding rows do not fill mini-batches of {sizes} rows for {ranks} ranks"
        )
    padding_rows = iter(padding)
    shares: list[list[str]] = [[] for _ in range(ranks)]
    for batch in batches:
        rows = [*batch, *(next(padding_rows) for _ in range(size - len(batch)))]
        for share, part in zip(shares, _balance(rows, ranks, lengths), strict=True):
            share += part
    return shares


def _balance(rows: Sequence[str], ranks: int, lengths: Mapping[str, int]) -> list[list[str]]:
    """Distribute equal numbers of rows to all ranks, and return each rank's rows in their order. The longest
    rows come first, and each goes to the rank that has the fewest tokens so far and is not full."""
    rank_rows = len(rows) // ranks
    tokens = [0] * ranks
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for i in sorted(range(len(rows)), key=lambda i: -lengths[rows[i]]):
        rank = min((r for r in range(ranks) if len(shares[r]) < rank_rows), key=lambda r: tokens[r])
        shares[rank].append(i)
        tokens[rank] += lengths[rows[i]]
    return [[rows[i] for i in sorted(share)] for share in shares]
