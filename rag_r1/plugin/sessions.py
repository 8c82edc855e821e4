"""Groups the rows of a trajectory into a session on their way to the optimiser. Functions of keys only.

A trajectory whose context is rewritten (memory, summary, folding) is trained as several rows. veRL names them
`<prompt>_<session>_<row>` (agent_loop_tq.py, `_agent_loop_postprocess`) and mostly counts rows. A
trajectory's vote in its group, the weight of its tokens in every loss and the number of updates of a step
must not depend on its number of rows. In veRL 0.9.1 these places conflict with that, under verl/:

- trainer/ppo/v1/trainer_base.py, `_update_actor`, `_update_critic`, `_get_required_batch_multiple`: a
  mini-batch is `ppo_mini_batch_size * rollout.n` rows, so more rows mean more updates.
- the same file, `_balance_batch`: rows are distributed over the ranks by their lengths alone, and
  workers/engine_workers.py, `train_mini_batch`: each rank cuts its rows into mini-batches in order. The rows
  of a trajectory end up in different updates.
- workers/engine/fsdp/transformer_impl.py, `forward_backward_batch`: `token-mean` divides by the generated
  tokens of the mini-batch, over all ranks. So a token's weight is right if the mini-batches hold the right
  trajectories; masked rows contribute neither to the numerator nor to the denominator.
- trainer/ppo/v1/utils.py, `compute_advantage_for_multi_trajectories`: GRPO uses the last row of a session for
  all its rows, and reads the advantage at that row's first generated token: if there is none, all get 0.
- trainer/ppo/core_algos.py, `compute_gae_advantage_return`: a reward on a token that was not generated is
  lost, and veRL puts it on the last token of a row.

`mini_batches`, `padded_row_count` and `rank_shares` lay out a batch so that this code gives the right result:
each mini-batch has the same trajectories as with one row each, and all have the same number of rows, with
masked rows as padding (session_trainer.py adds it). `trained_rows` and `move_rewards` prepare the rows for
the advantages (sampler.py). Losses and estimators that count rows in other ways are refused before the run
(rag_r1/training/preflight/sessions.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def session_of(key: str) -> str:
    """The trajectory to which a row belongs: veRL's keys are `<prompt>_<trajectory>_<row>`."""
    return key.rpartition("_")[0]


def prompt_of(key: str) -> str:
    """The prompt to which a row or a trajectory belongs; prompts are UUIDs, without an underscore."""
    return key.partition("_")[0]


def group_by_session(keys: Sequence[str]) -> dict[str, list[str]]:
    """The rows of each trajectory in their order, trajectories in the order of their first keys."""
    rows: dict[str, list[str]] = {}
    for key in keys:
        rows.setdefault(session_of(key), []).append(key)
    return {name: sorted(keys, key=lambda key: int(key.rpartition("_")[2])) for name, keys in rows.items()}


def last_rows(keys: Sequence[str]) -> list[str]:
    """The last row of each trajectory: it represents all its rows, which share its reward."""
    return [rows[-1] for rows in group_by_session(keys).values()]


def trained_rows(keys: Sequence[str], generated: Mapping[str, bool]) -> list[str]:
    """`keys`, in order, without the rows in which nothing was generated (`generated`: key -> whether anything
    was). There is nothing to train in them, and as the last row one would set its trajectory's advantage to
    0. A trajectory in which nothing was generated at all keeps its last row, and with it its vote."""
    kept_rows: set[str] = set()
    for rows in group_by_session(keys).values():
        kept_rows.update([key for key in rows if generated[key]] or rows[-1:])
    return [key for key in keys if key in kept_rows]


def move_rewards(rewards: Sequence[float], mask: Sequence[int]) -> list[float]:
    """The rewards of a row's tokens, with those after the last generated token (`mask` 1) moved onto it. The
    rewards of a row without a generated token are unchanged."""
    new_rewards = list(rewards)
    last_generated = max((i for i, bit in enumerate(mask) if bit), default=None)
    if last_generated is not None and any(new_rewards[last_generated + 1 :]):
        new_rewards[last_generated] += sum(new_rewards[last_generated + 1 :])
        new_rewards[last_generated + 1 :] = [0.0] * len(new_rewards[last_generated + 1 :])
    return new_rewards


def mini_batches(keys: Sequence[str], sessions: int) -> list[list[str]]:
    """The rows of each mini-batch: `sessions` whole trajectories, in the last one those that are left. Which
    trajectories these are depends on the order of the keys, and not on how many rows each has."""
    rows = list(group_by_session(keys).values())
    return [
        [key for session in rows[start : start + sessions] for key in session]
        for start in range(0, len(rows), sessions)
    ]


def padded_row_count(batches: Sequence[Sequence[str]], multiple: int) -> int:
    """The number of rows to which all mini-batches are padded: that of the longest, rounded up to a multiple
    (of ranks times rows of a micro-batch)."""
    return math.ceil(max(map(len, batches)) / multiple) * multiple


def rank_shares(
    batches: Sequence[Sequence[str]], padding: Sequence[str], ranks: int, lengths: Mapping[str, int]
) -> list[list[str]]:
    """The rows of each rank, in the order in which it cuts them into mini-batches.

    All rows and the padding are distributed: each mini-batch gets the same number of rows, and each rank the
    same number of these, with about as many tokens (`lengths`) as the others. Raises ValueError if that is
    impossible.
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
    """Distributes equal numbers of rows to all ranks: longest first, each to the rank with the fewest
    tokens."""
    rank_rows = len(rows) // ranks
    tokens = [0] * ranks
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for i in sorted(range(len(rows)), key=lambda i: -lengths[rows[i]]):
        rank = min((r for r in range(ranks) if len(shares[r]) < rank_rows), key=lambda r: tokens[r])
        shares[rank].append(i)
        tokens[rank] += lengths[rows[i]]
    return [[rows[i] for i in sorted(share)] for share in shares]
