"""Runs veRL's `SFTTrainer` on a CPU, with a process group that already exists.

veRL's own start (verl/trainer/sft_trainer.py, `run_sft`) begins with verl/utils/distributed.py,
`initialize_global_process_group`, which builds the backend "cpu:gloo,<device>:<backend>" and creates the
group without asking whether one exists. On our platform that names the device "cpu" twice, which torch
refuses. So this module does what `run_sft` does in three lines, with its first line replaced; on GPUs
veRL's own module is started, and nothing of veRL is patched on either.

    python -m torch.distributed.run --standalone --nproc-per-node=1 -m rag_r1.plugin.cpu.sft_trainer \\
        --config-path=... --config-name=... key=value ...
"""

from __future__ import annotations

import hydra
import torch.distributed
import verl.trainer.sft_trainer as verl_sft
from omegaconf import DictConfig
from verl.plugin.platform import get_platform


@hydra.main(config_path=None, version_base=None)
def main(config: DictConfig) -> None:
    """Trains; run in every process that torchrun starts."""
    get_platform().communication_backend_name()  # creates the default group, see platform.py
    try:
        verl_sft.SFTTrainer(config).fit()
    finally:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
