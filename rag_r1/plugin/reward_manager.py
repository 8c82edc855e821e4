"""veRL's reward manager `search`: scores a trajectory record with the terms under `rag_r1.reward`, and
dumps it.

It reads the record that the agent loop put into `extra_fields`, never the decoded sequence, so a prompt's
example or a document cannot earn anything. The score of every term is returned under its own name, with how
the episode went, so that veRL logs them for validation and the sampler for training. A trajectory with a
failure that `rag_r1.failures.mask` names is not judged: its terms are None, which veRL's validation leaves
out of its means, and `masked` tells the sampler to leave it out of the batch. With `rag_r1.trajectory_dir`
set, every record is appended to `<dir>/<split>/step_<step>-<process>.jsonl`.
"""

from __future__ import annotations

import errno
import json
import logging
import os
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from verl import DataProto
from verl.experimental.reward_loop.reward_manager import register
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from rag_r1.agent import KINDS, Trajectory
from rag_r1.config import RagR1Config
from rag_r1.rewards import RewardSum, as_golds

logger = logging.getLogger(__name__)


@register("search")
class SearchRewardManager(RewardManagerBase):
    """Scores one trajectory at a time; see the module's paragraph."""

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any, **unused: Any):
        super().__init__(config, tokenizer, compute_score)
        settings = RagR1Config.from_config(OmegaConf.to_container(config.rag_r1, resolve=True))
        self.reward = RewardSum.from_config(settings.reward, settings.protocol)
        self.mask = settings.failures.mask
        self.dump = TrajectoryDump(settings.trajectory_dir)

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """Score the last row of `data` (all rows of a trajectory share its reward)."""
        row = data[-1].non_tensor_batch
        record = Trajectory.from_dict(row["tool_extra_fields"]["trajectory"])
        golds = golds_of(row.get("reward_model"))
        await self._judge(record, golds)
        info = row.get("extra_info") or {}
        dumped = self.dump.write(
            record,
            step=int(row.get("global_steps", 0)),
            split=str(info.get("split", "train")),
            data_source=str(row.get("data_source", "")),
            golds=golds,
        )
        return {
            "reward_score": on_grid(record.rewards["score"] or 0.0),
            "reward_extra_info": {
                **summary(record),
                "masked": float(record.masked(self.mask)),
                "undumped": float(not dumped),
                **record.rewards,
            },
        }

    async def _judge(self, record: Trajectory, golds: list[str]) -> None:
        if not record.masked(self.mask):
            judgement = await self.reward.judge(record, golds)
            record.rewards, record.turn_scores = judgement.rewards, judgement.turn_scores
            if judgement.missing:
                names = (f"{name} ({why})" if why else name for name, why in judgement.missing.items())
                record.failed("judge", f"no value for {', '.join(names)}")
        if record.masked(self.mask):
            record.rewards = {**self.reward.unjudged(), **record.rewards, "score": None}
            record.turn_scores = []


def on_grid(score: float) -> float:
    """`score` to a multiple of 2^-16, so that equal rewards are exactly equal to their mean in 32 bits too.

    Otherwise the mean of seven equal rewards need not be that reward, and GRPO, which divides the difference
    by the (equally tiny) deviation of the group, makes an advantage of up to 0.2 out of a tie.
    """
    return round(score * 65536) / 65536


def golds_of(reward_model: Any) -> list[str]:
    """Gold answers of a row: `reward_model.ground_truth`, or its `target`; empty if malformed."""
    truth = reward_model.get("ground_truth") if isinstance(reward_model, dict) else None
    return as_golds(truth.get("target") if isinstance(truth, dict) else truth)


def summary(record: Trajectory) -> dict[str, float]:
    """How an episode went, in numbers; the same keys for every sample."""
    return {
        "turns": float(len(record.turns)),
        "searches": float(record.n_searches),
        "repeated_queries": float(record.n_repeated_queries),
        "answered": float(record.status == "answered"),
        "token_limit": float(record.status == "token_limit"),
        "tool_failures": float(record.n_tool_failures),
        "bad_row": float(record.status == "bad_row"),
        "invalid_turns": float(sum(turn.action == "invalid" for turn in record.turns)),
        "retries": float(record.retries),
        "seconds": record.seconds,
        **{f"failed_{kind}": float(record.masked((kind,))) for kind in KINDS},
    }


class TrajectoryDump:
    """Appends records as JSON lines; one file for each split, step and process. None: dumps nothing."""

    def __init__(self, folder: str | None):
        self.folder = Path(folder) if folder else None

    def write(self, record: Trajectory, *, step: int, split: str, **context: Any) -> bool:
        """Append one record with its context. A full disk costs the record and not the run, and leaves no
        half of a line behind; False then."""
        if self.folder is None:
            return True
        name = "".join(c if c.isalnum() or c in "-_" else "_" for c in split) or "train"
        path = self.folder / name / f"step_{step:06d}-{os.getpid()}.jsonl"
        line = json.dumps({"step": step, "split": split, **context, **record.to_dict()}, ensure_ascii=False)
        # surrogatepass: a policy can emit half of a character
        data = (line + "\n").encode("utf-8", "surrogatepass")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(path, "ab", buffering=0, opener=_for_its_owner) as file:
                before = file.seek(0, os.SEEK_END)
                try:
                    if file.write(data) != len(data):  # what a full disk says first
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                except OSError:
                    file.truncate(before)
                    raise
        except OSError as error:
            logger.error("cannot write trajectory to %s: %s", path, error)
            return False
        return True


def _for_its_owner(path: str, flags: int) -> int:
    """Questions and what was retrieved may be confidential: on a shared machine they are nobody else's."""
    return os.open(path, flags, 0o600)
