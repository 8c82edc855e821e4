"""Detects concurrent trainings on this machine whose sockets would collide with ours.

A training hands its weights to vLLM through a socket in /tmp. veRL puts Ray's job id into its name, so that
two trainings do not meet there (verl/workers/rollout/vllm_rollout/vllm_rollout.py, `ServerAdapter`). But
every Ray cluster counts its jobs from 1, and a training that is not given a cluster starts its own: all of
them then have the same socket, whatever GPUs they use, and vLLM may load the weights of another training or
wait forever.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import psutil

#: The word of a command line that shows a training.
TRAINER = "verl.trainer.main_ppo"


def find_other_trainings(processes: Iterable[tuple[int, Sequence[str]]] | None = None) -> list[int]:
    """Returns the ids of other processes that run veRL's trainer. `processes`: (id, command line) of each
    process; None: all that this process can see."""
    if processes is None:
        all_processes = psutil.process_iter(["cmdline"])
        processes = ((process.pid, process.info["cmdline"] or ()) for process in all_processes)
    return [pid for pid, words in processes if TRAINER in words and pid != os.getpid()]


def warn_of_other_trainings() -> None:
    """Print a warning if another training runs on this machine, before one starts."""
    if ids := find_other_trainings():
        print(
            f"warning: another training runs on this machine (process {', '.join(map(str, ids))}). Their"
            " weights can be mixed up, and each can wait for the other forever\n"
            "  -> run one after the other, or each in a container with its own /tmp",
            flush=True,
        )
