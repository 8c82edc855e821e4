"""veRL's reward manager `search`: scores trajectory records with the terms under `rag_r1.reward`.

It reads the record that the agent loop put into `extra_fields`, and never the decoded sequence, so an example
in the prompt or a document cannot earn a reward. The score of each term is returned under the term's name,
together with statistics of the episode. veRL logs these values in validation, and the sampler in training.
Terms that call a judge are awaited, while veRL's reward worker scores other trajectories. If
`rag_r1.trajectory_dir` is set, every record is written there before its score is returned, in a thread
(rag_r1/agent/records.py).

A trajectory with a failure whose kind is in `rag_r1.failures.mask` has no score. Its terms are None, which
veRL's validation leaves out of its means. (If a judge failed, the other terms keep their values.) `masked`
makes the sampler remove the trajectory from the batch.

The scores of single turns normally stay in the record (`turn_scores`). veRL 0.9.1 takes only the total from a
reward manager, and averages everything else in validation (metric_utils.py, `process_validation_metrics`),
which fails on lists of different lengths. For the advantage estimator `turn_loo` they are returned as well,
and the agent loop turns them into rewards of tokens before veRL sees them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from verl import DataProto
from verl.experimental.reward_loop.reward_manager import register
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from rag_r1.agent import Trajectory
from rag_r1.agent.records import TrajectoryDump, calls_by_tool, summary
from rag_r1.agent.tokens.signals import signals
from rag_r1.config.schema import RagR1Config
from rag_r1.data.evidence import GoldEvidence
from rag_r1.data.rows import golds_of
from rag_r1.options.problems import plain
from rag_r1.plugin.algorithms.turn_loo import uses_turn_loo
from rag_r1.plugin.probe_rows import probe_of, split_of, suffix_of
from rag_r1.protocols import SEARCH
from rag_r1.rewards import RewardSum
from rag_r1.rewards.answer_metrics import exact_match


@register("search")
class SearchRewardManager(RewardManagerBase):
    """Scores one trajectory at a time with the terms of `rag_r1.reward`, and writes its record."""

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any, **unused: Any):
        super().__init__(config, tokenizer, compute_score)
        settings = RagR1Config.from_config(plain(config.rag_r1))
        self.reward = RewardSum.from_config(settings.reward, settings.protocol)
        self.model = config.get("actor_rollout_ref", {}).get("model", {}).get("path")
        self.mask = settings.failures.mask
        self.by_turn = uses_turn_loo(config)
        #: Tools whose calls are counted separately; none if search is the only tool, whose count is the
        #: total.
        self.tools = (SEARCH, *settings.tools) if settings.tools else ()
        self.dump = TrajectoryDump(settings.trajectory_dir, compressed=settings.trajectory_gzip)

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """Score a trajectory, whose record is in the last row of `data`. Returns the reward, and the values
        that veRL and the sampler average."""
        row = data[-1].non_tensor_batch
        record = Trajectory.from_dict(row["tool_extra_fields"]["trajectory"])
        golds = golds_of(row.get("reward_model"))
        await self.reward.score(record, golds, self.mask)
        evidence = GoldEvidence.of(row.get("extra_info") or {})
        is_dumped = await self._dump(record, golds, evidence, row)
        is_masked = record.masked(self.mask)
        figures = {
            **summary(record),
            **signals(record, evidence.recall if evidence else None),
            **calls_by_tool(record, self.tools),
            # Does not depend on what the reward pays for.
            "right": None if is_masked else exact_match(record.answer, golds),
            "source": str(row.get("data_source", "")),  # veRL's validation ignores texts
            "masked": float(is_masked),
            "undumped": float(not is_dumped),
            **record.rewards,
        }
        if self.by_turn:
            figures["turn_scores"] = list(map(round_to_grid, record.turn_scores))
        return {"reward_score": round_to_grid(record.rewards["score"] or 0.0), "reward_extra_info": figures}

    async def _dump(
        self, record: Trajectory, golds: list[str], evidence: GoldEvidence, row: Mapping[str, Any]
    ) -> bool:
        """Write the record if there is a folder for trajectories, and return False if that fails. Records
        of a probe have the split `<split>_<probe>` and the original name of their data source."""
        split = split_of(row.get("extra_info") or {})
        probe = probe_of(row)
        return await self.dump.write_in_thread(
            record,
            step=int(row.get("global_steps", 0)),
            split=f"{split}_{probe}" if probe else split,
            data_source=str(row.get("data_source", "")).removesuffix(suffix_of(probe) if probe else ""),
            golds=golds,
            metadata=evidence.names(),
            **self._origin(row),
        )

    def _origin(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a record that say in which group, by which weights and when the trajectory
        was played, and how its reward is weighted."""
        fields = row["tool_extra_fields"]
        return {
            "group": str(row.get("uid", "")),
            "model": self.model,
            # The number of updates of the weights that generated the first turn, and the last one.
            "policy_steps": [fields.get(name) for name in ("min_global_steps", "max_global_steps")],
            "reward_weights": self.reward.weights,
            "time": round(time.time(), 3),
        }


def round_to_grid(score: float) -> float:
    """Round `score` to a multiple of 2^-16, so that equal rewards equal their mean exactly in 32 bits too.

    Otherwise the mean of, say, seven equal rewards may differ slightly from that reward. GRPO divides the
    difference by the equally tiny deviation of the group, which turns a tie into an advantage of up to 0.2.
    """
    return round(score * 65536) / 65536
