"""Our trainers in veRL's registry, and real updates of a small model: rows change nothing of them."""

from __future__ import annotations

import math
from copy import deepcopy
from functools import partial

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("updates on this machine's own platform are veRL's", allow_module_level=True)

import verl  # noqa: F401  (loads the plugin)
from omegaconf import OmegaConf
from verl.trainer.ppo.v1 import PPOTrainerSync, get_trainer_cls
from verl.utils import tensordict_utils as tu
from verl.workers.config import (
    CriticConfig,
    FSDPActorConfig,
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
    TrainingWorkerConfig,
)
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.losses import ppo_loss, value_loss

from rag_r1.plugin.sampler import SearchReplayBuffer, SearchReplayBufferAsync
from rag_r1.plugin.session_trainer import SessionTrainerSync
from tests.plugin.split_sessions import Laid, configuration, laid_out, make_sessions, make_trainer
from tests.recipes.composed_recipes import composed

GROUPS = {"prompts": 2, "group": 4}


@pytest.mark.parametrize("mode", ["sync", "colocate_async", "separate_async"])
def test_a_session_trainer_is_verls_own_trainer_of_its_mode(mode):
    ours, verls = get_trainer_cls(f"sessions_{mode}"), get_trainer_cls(mode)
    assert issubclass(ours, verls) and ours.verls_mode == mode


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "sampler"), [("sync", SearchReplayBuffer), ("colocate_async", SearchReplayBufferAsync)]
)
def test_a_session_trainer_is_made_from_a_recipe_as_its_parent_is(mode, sampler):
    name = f"trainer.v1.sampler.custom_sampler.name={sampler.__name__}"
    config = deepcopy(composed("recipes/demo/grpo", f"trainer.v1.trainer_mode=sessions_{mode}", name))
    OmegaConf.set_readonly(config, False)
    trainer = get_trainer_cls(f"sessions_{mode}")(config)
    assert trainer.trainer_mode == mode and isinstance(trainer.replay_buffer, sampler)
    assert trainer.replay_buffer.trainer_mode == mode


def test_mini_batches_are_told_in_rows_and_the_configuration_is_as_before():
    config = configuration(**GROUPS)
    trainer = make_trainer(SessionTrainerSync, config, ranks=1)
    trainer._mini_batch_rows = 21
    with pytest.raises(ZeroDivisionError), trainer._config_in_rows():
        changed = trainer.config
        assert changed.actor_rollout_ref.actor.ppo_mini_batch_size * changed.actor_rollout_ref.rollout.n == 21
        assert changed.critic.ppo_mini_batch_size * changed.actor_rollout_ref.rollout.n == 21
        _ = 1 / 0
    assert trainer.config is config and config.actor_rollout_ref.rollout.n == GROUPS["group"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_micro_batches_of_rows_divide_every_ranks_share(monkeypatch, ranks):
    trainer = make_trainer(SessionTrainerSync, configuration(**GROUPS), ranks)
    trainer._mini_batches = [[f"uid_{i}_0" for i in range(7)]]
    model = trainer.config.actor_rollout_ref
    model.actor.use_dynamic_bsz = trainer.config.critic.use_dynamic_bsz = False
    model.actor.ppo_micro_batch_size_per_gpu, model.rollout.log_prob_micro_batch_size_per_gpu = 2, 4
    trainer.config.critic.ppo_micro_batch_size_per_gpu = 6
    rows = trainer._get_required_batch_multiple(ranks)
    assert rows == trainer._mini_batch_rows == 12 * ranks
    assert all(rows // ranks % size == 0 for size in (2, 4, 6))


def test_what_rewriting_costs_is_told(monkeypatch):
    sessions = make_sessions(0, prompts=5, group=4)
    laid = laid_out(monkeypatch, sessions, split=True, **GROUPS)
    padding = [tag for tag in laid.batch.tags if tag.get("is_padding")]
    rows = len(laid.batch) - len(padding)
    assert laid.metrics["sessions/rows"] == rows / 20 > 1
    assert laid.metrics["sessions/padding"] == len(padding) / len(laid.batch)
    assert laid.metrics["global_seqlen/balanced_max"] == sum(tag["seq_len"] for tag in laid.batch.tags)


class CountingWorker(TrainingWorker):
    """veRL's training worker, which writes down the gradient's norm at every update."""

    def train_batch(self, data):
        done = super().train_batch(data)
        self.__dict__.setdefault("norms", []).append(tu.get(done, "metrics")["grad_norm"])
        return done


class Group:
    """Stands for Ray's group of workers with a single one in it: gives it what the store holds of a batch."""

    def __init__(self, worker: CountingWorker, laid: Laid):
        self.worker, self.laid = worker, laid

    def train_mini_batch(self, batch):
        data = self.laid.rows(batch.keys).exclude("session", "first", "extra_fields", "num_turns", "uid")
        for key, value in batch.extra_info.items():
            tu.assign_non_tensor_data(data, key, value)
        self.done = self.worker.train_mini_batch(data)
        return self

    def get(self):
        return self.done

    def update_actor(self, batch):
        return self.train_mini_batch(batch).get()


@pytest.fixture
def alone(lone_worker):
    """The variables of a training worker that is alone."""
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def make_worker(kind: str, folder: str) -> CountingWorker:
    """A worker with plain gradient descent, so that an update shows the size of its gradient."""
    torch.manual_seed(0)
    fp32 = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    worker = CountingWorker(
        TrainingWorkerConfig(
            model_type="language_model" if kind == "actor" else "value_model",
            model_config=HFModelConfig(
                path=folder, load_tokenizer=False, use_remove_padding=False,
                enable_gradient_checkpointing=False, override_config={"attn_implementation": "sdpa"},
            ),
            engine_config=FSDPEngineConfig(
                strategy="fsdp2", mixed_precision=fp32, model_dtype="fp32", use_torch_compile=False,
                use_dynamic_bsz=True, max_token_len_per_gpu=200,
            ),
            optimizer_config=FSDPOptimizerConfig(
                optimizer="SGD", lr=0.05, weight_decay=0.0, clip_grad=1e6, total_training_steps=1
            ),
            checkpoint_config=None,
        )
    )  # fmt: skip
    worker.reset()
    if kind == "actor":
        config = FSDPActorConfig(
            strategy="fsdp2", rollout_n=1, use_dynamic_bsz=True, use_kl_loss=True, kl_loss_coef=0.1,
            entropy_coeff=0.01,
        )  # fmt: skip
        worker.set_loss_fn(partial(ppo_loss, config=config))
    else:
        critic = CriticConfig(strategy="fsdp2", use_dynamic_bsz=True, cliprange_value=0.5)
        worker.set_loss_fn(partial(value_loss, config=critic))
    return worker


def step(patch, kind: str, folder: str, sessions, *, split: bool, trainer=None):
    """One step of a trainer: the gradient's norm at each update, veRL's metrics, and the weights after it."""
    estimator = "grpo" if kind == "actor" else "gae"
    laid = laid_out(patch, sessions, split=split, kind=trainer, adv_estimator=estimator, **GROUPS)
    laid.trainer._compute_advantage(laid.batch, {})
    laid.batch.extra_info["temperature"] = 1.0
    worker, metrics = make_worker(kind, folder), {}
    group = Group(worker, laid)
    if kind == "actor":
        laid.trainer.actor_rollout_wg = group
        laid.trainer._update_actor(laid.batch, metrics)
    else:
        laid.trainer.critic_wg = group
        laid.trainer._update_critic(laid.batch, metrics)
    weights = {name: weight.full_tensor() for name, weight in worker.engine.module.state_dict().items()}
    return worker.norms, metrics, weights


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["actor", "critic"])
def test_a_step_of_verls_own_worker_is_the_same_with_one_row_or_several(
    monkeypatch, alone, model_folder, kind
):
    sessions = make_sessions(1, prompts=5, group=4)
    before = make_worker(kind, model_folder).engine.module.state_dict()
    before = {name: weight.full_tensor().clone() for name, weight in before.items()}
    norms, metrics, weights = step(monkeypatch, kind, model_folder, sessions, split=False)
    of_rows = step(monkeypatch, kind, model_folder, sessions, split=True)
    assert len(of_rows[0]) == len(norms) == math.ceil(5 / GROUPS["prompts"])
    assert of_rows[0] == pytest.approx(norms, rel=1e-3) and min(norms) > 1e-3
    assert any(not torch.equal(weights[name], before[name]) for name in before)
    for name, weight in weights.items():
        torch.testing.assert_close(of_rows[2][name], weight, atol=1e-5, rtol=1e-4)
    for name in (
        ("actor/pg_loss", "actor/entropy_loss", "actor/kl_loss") if kind == "actor" else ("critic/vf_loss",)
    ):
        assert of_rows[1][name] == pytest.approx(metrics[name], rel=1e-3, abs=1e-6)


@pytest.mark.slow
def test_verls_own_trainer_would_make_more_updates_of_the_same_tokens(monkeypatch, alone, model_folder):
    sessions = make_sessions(1, prompts=5, group=4)
    norms = step(monkeypatch, "actor", model_folder, sessions, split=True, trainer=PPOTrainerSync)[0]
    assert len(norms) > math.ceil(5 / GROUPS["prompts"])
