"""The same generated tokens in one row for each trajectory, or in several, for veRL's own functions.

A trajectory is one sequence of ids. In one row its response is everything after the prompt; in several, each
row's prompt is all that stands before it. So every generated token has the same context in both forms, and
whatever differs in a loss, a gradient or an advantage comes from the rows alone.

`laid_out` takes such trajectories through the sampler and through a trainer's own `_balance_batch`, with
TransferQueue in memory and without Ray.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from omegaconf import OmegaConf
from tensordict import NonTensorStack, TensorDict
from verl.trainer.ppo import padding_utils
from verl.trainer.ppo.v1 import PPOTrainer, PPOTrainerSync, trainer_base

from rag_r1.plugin.sample_store import KVBatchMeta
from rag_r1.plugin.session_trainer import SessionTrainerSync
from tests.plugin.store_in_memory import Store, make_buffer

VOCABULARY, EOS = 50, 1


@dataclass(frozen=True)
class Session:
    """A trajectory: `ids` and, for each of them, whether it was `generated`. `rows` are the stretches (first
    and last + 1) that are responses where it has several; `numbers` holds a number for each id by name."""

    key: str
    ids: list[int]
    generated: list[int]
    rows: list[tuple[int, int]]
    reward: float
    numbers: dict[str, list[float]]

    @property
    def start(self) -> int:
        """Where the response begins."""
        return self.rows[0][0]

    def stretches(self, split: bool) -> list[tuple[int, int]]:
        """The responses: several, or one up to the last generated token."""
        end = max(i for i, bit in enumerate(self.generated) if bit) + 1
        return self.rows if split and len(self.rows) > 1 else [(self.start, end)]


def apart(session: Session) -> bool:
    """Between the rows something was observed. Otherwise turns of two rows are one run in a single row."""
    return not any(session.generated[begin] and session.generated[begin - 1] for begin, _ in session.rows[1:])


def make_sessions(seed: int, prompts: int, group: int, most_rows: int = 3) -> list[Session]:
    """Trajectories of `prompts` groups, in the order in which they ended. Some rows end with an observation,
    and some last rows hold nothing else."""
    rng = random.Random(seed)
    sessions = [_session(rng, f"prompt{p}_{i}", most_rows) for p in range(prompts) for i in range(group)]
    rng.shuffle(sessions)
    return sessions


def _session(rng: random.Random, key: str, most_rows: int) -> Session:
    generated = [0] * rng.randint(1, 5)
    rows = []
    for _ in range(rng.randint(1, most_rows)):
        generated += [0] * rng.randint(0, 2)  # read before the row, which a rewritten context may hold
        begin = len(generated)
        for _ in range(rng.randint(1, 2)):
            generated += [1] * rng.randint(1, 4) + [0] * rng.randint(0, 3)
        rows.append((begin, len(generated)))
    if len(rows) > 1 and rng.random() < 0.3:
        generated += [0, 0]
        rows.append((len(generated) - 2, len(generated)))
    ids = [rng.randrange(2, VOCABULARY) for _ in generated]
    names = ("old_log_probs", "ref_log_prob", "rollout_log_probs", "values")
    numbers = {name: [rng.gauss(-2.0, 0.5) for _ in ids] for name in names}
    return Session(key, ids, generated, rows, rng.choice([0.0, 0.25, 1.0]), numbers)


class RowStore(Store):
    """The store, which also gives all fields at once, knows no fields that were not put, and takes new rows.
    Tensors come back nested, as from the real one."""

    def kv_batch_get(self, keys, partition_id, select_fields=None):
        rows = [self.rows[partition_id][key] for key in keys]
        names = [name for name in select_fields or rows[0] if all(name in row for row in rows)]
        return TensorDict(
            {name: _column([row[name] for row in rows]) for name in names}, batch_size=len(keys)
        )

    def kv_batch_put(self, keys, partition_id, fields, tags=None):
        for name in fields.keys():
            column = fields.get(name)
            values = column.unbind() if isinstance(column, torch.Tensor) else column.tolist()
            for key, value in zip(keys, values, strict=True):
                self.rows[partition_id].setdefault(key, {})[name] = value
        for key, tag in zip(keys, tags or (), strict=False):
            self.tags[partition_id][key] = tag
        return KVBatchMeta(partition_id=partition_id, keys=list(keys), tags=[{} for _ in keys])


def _column(values: list[Any]) -> Any:
    if not all(isinstance(value, torch.Tensor) for value in values):
        return NonTensorStack(*values)
    if values[0].dim():
        return torch.nested.as_nested_tensor(values, layout=torch.jagged)
    return torch.stack(values)


def _fields(session: Session, begin: int, end: int, by_turn: bool) -> dict[str, Any]:
    """A row as veRL's agent-loop worker stores it: the reward on the last token, whatever that is. `by_turn`:
    instead some number on the last token of each turn."""
    ids, mask = torch.tensor(session.ids), torch.tensor(session.generated[begin:end])
    rewards = torch.zeros(end - begin)
    if by_turn:
        ends = mask.bool() & ~torch.cat([mask[1:], mask.new_zeros(1)]).bool()
        rewards[ends] = torch.tensor(session.numbers["values"][begin:end])[ends]
    else:
        rewards[-1] = session.reward
    return {
        "uid": session.key.partition("_")[0],
        "session": session.key,
        "first": begin,
        "prompts": ids[:begin],
        "responses": ids[begin:end],
        "input_ids": ids[:end],
        "position_ids": torch.arange(end),
        "response_mask": mask,
        "loss_mask": mask,
        "rm_scores": rewards,
        "num_turns": 2,
        "extra_fields": {"reward_extra_info": {"masked": 0.0, "score": session.reward}},
    }


def put(store: Store, sessions: Sequence[Session], split: bool, by_turn: bool = False) -> None:
    """Store finished groups, trajectory after trajectory."""
    for session in sessions:
        uid = session.key.partition("_")[0]
        store.put("train", uid, {"is_prompt": True, "status": "finished", "global_steps": 1})
        for i, (begin, end) in enumerate(session.stretches(split)):
            tag = {"prompt_len": begin, "response_len": end - begin, "seq_len": end}
            store.put("train", f"{session.key}_{i}", tag, **_fields(session, begin, end, by_turn))


def _number(store: RowStore, batch: KVBatchMeta, sessions: dict[str, Session]) -> None:
    """Give every row its tokens' numbers, as the workers do; padding gets zeros."""
    for key, tag in zip(batch.keys, batch.tags, strict=True):
        row = store.rows["train"][key]
        numbers = sessions[row["session"]].numbers
        begin, length = row["first"], len(row["responses"])
        for name, values in numbers.items():
            zeros = torch.zeros(length)
            row[name] = zeros if tag.get("is_padding") else torch.tensor(values[begin : begin + length])


ALGORITHM = {
    "adv_estimator": "grpo",
    "gamma": 1.0,
    "lam": 1.0,
    "use_kl_in_reward": False,
    "norm_adv_by_std_in_grpo": True,
}


def configuration(prompts: int, group: int, **algorithm: Any) -> Any:
    """The keys that veRL's trainer reads in a step; `prompts` make a mini-batch."""
    actor = {
        "ppo_mini_batch_size": prompts,
        "use_dynamic_bsz": True,
        "ppo_epochs": 1,
        "data_loader_seed": 42,
        "shuffle": False,
        "calculate_entropy": True,
        "entropy_coeff": 0.01,
    }
    return OmegaConf.create(
        {
            "actor_rollout_ref": {"actor": actor, "rollout": {"n": group, "temperature": 1.0}},
            "critic": dict(actor),
            "algorithm": {**ALGORITHM, **algorithm},
            "trainer": {"critic_warmup": 0},
        }
    )


def make_trainer(kind: type[PPOTrainer], config: Any, ranks: int) -> Any:
    """A trainer of veRL's or ours without its workers; `ranks` share a mini-batch."""
    trainer = object.__new__(kind)
    trainer.config, trainer.global_steps = config, 1
    trainer.use_critic, trainer.use_reference_policy = True, False
    trainer.tokenizer = SimpleNamespace(eos_token_id=EOS)
    trainer.actor_rollout_wg = SimpleNamespace(_dispatch_info={"actor": list(range(ranks))})
    return trainer


@dataclass
class Laid:
    """A batch as the workers get it."""

    trainer: Any
    store: RowStore
    batch: KVBatchMeta
    metrics: dict[str, float]
    ranks: int

    @property
    def rows_of_each(self) -> int:
        """Rows of a mini-batch, over all ranks."""
        config = self.trainer.config
        size = config.actor_rollout_ref.actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n
        return getattr(self.trainer, "_mini_batch_rows", size)

    def mini_batches(self) -> list[list[list[str]]]:
        """The keys of each update, rank by rank, cut as veRL's `train_mini_batch` does."""
        share, size = len(self.batch) // self.ranks, self.rows_of_each // self.ranks
        ranks = [self.batch.keys[rank * share : (rank + 1) * share] for rank in range(self.ranks)]
        return [[keys[i : i + size] for keys in ranks] for i in range(0, share, size)]

    def rows(self, keys: Sequence[str]) -> TensorDict:
        return self.store.kv_batch_get(keys=list(keys), partition_id="train")

    def by_token(self, field: str) -> dict[tuple[str, int], float]:
        """A field's value for each generated token: by trajectory and place in it."""
        values = {}
        for key in self.batch.keys:
            row = self.store.rows["train"][key]
            for i in row["response_mask"].nonzero().flatten().tolist():
                place = (row["session"], row["first"] + i)
                assert place not in values, "a generated token stands in one row"
                values[place] = float(row[field][i])
        return values


def laid_out(
    patch: Any,
    sessions: Sequence[Session],
    *,
    split: bool,
    prompts: int,
    group: int,
    ranks: int = 1,
    kind: type[PPOTrainer] | None = None,
    **algorithm: Any,
) -> Laid:
    """The trajectories as a batch: sampled, padded, in the order of the ranks. In several rows with our
    trainer, in one with veRL's, unless `kind` says otherwise."""
    buffer = make_buffer(patch, [], store=RowStore(), group_size=group)
    for module in (trainer_base, padding_utils):
        patch.setattr(module, "tq", buffer.store)
    put(buffer.store, sessions, split, by_turn=algorithm.get("adv_estimator") == "turn_loo")
    requested = len({session.key.partition("_")[0] for session in sessions})
    batch, metrics = buffer.sample(global_steps=1, partition_id="train", batch_size=requested)
    trainer = make_trainer(
        kind or (SessionTrainerSync if split else PPOTrainerSync),
        configuration(prompts, group, **algorithm),
        ranks,
    )
    batch = trainer._balance_batch(batch, metrics=metrics)
    _number(buffer.store, batch, {session.key: session for session in sessions})
    return Laid(trainer, buffer.store, batch, metrics, ranks)
