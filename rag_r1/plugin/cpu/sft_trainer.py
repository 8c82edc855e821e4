"""Runs veRL's `SFTTrainer` on a CPU, with a process group that already exists.

veRL's own entry (verl/trainer/sft_trainer.py, `run_sft`) first builds the backend
"cpu:gloo,<device>:<backend>" and creates the process group without checking whether one exists
(verl/utils/distributed.py, `initialize_global_process_group`). On our platform the backend would name the
device "cpu" twice, which torch refuses. `run_sft` of veRL 0.9.1 has only four calls, so this module repeats
them with the first one replaced. On GPUs veRL's own module is started.

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
    """Train. torchrun calls this in each of its processes."""
    get_platform().communication_backend_name()  # creates the default group, see platform.py
    try:
        verl_sft.SFTTrainer(config).fit()
    finally:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
