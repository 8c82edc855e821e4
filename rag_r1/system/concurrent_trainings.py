"""Detects other trainings on this machine whose sockets would collide with those of a new one.

A training passes its weights to vLLM through a socket in /tmp. veRL puts Ray's job id into the socket's name,
so that two trainings do not share one (verl/workers/rollout/vllm_rollout/vllm_rollout.py, `ServerAdapter`).
But every Ray cluster counts its jobs from 1, and a training starts a cluster of its own unless it joins
an existing one. All such trainings have the same socket, whatever GPUs they use, and vLLM may load the
weights of another training or wait forever.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import psutil

#: The argument by which the command line of a training is recognised.
TRAINER = "verl.trainer.main_ppo"


def find_other_trainings(processes: Iterable[tuple[int, Sequence[str]]] | None = None) -> list[int]:
    """Return the ids of other processes that run veRL's trainer. `processes` has the id and command line of
    each process to consider; None for all processes that this one can see."""
    if processes is None:
        all_processes = psutil.process_iter(["cmdline"])
        processes = ((process.pid, process.info["cmdline"] or ()) for process in all_processes)
    return [pid for pid, command_line in processes if TRAINER in command_line and pid != os.getpid()]


def warn_of_other_trainings() -> None:
    """Print a warning if another training is running on this machine."""
    if ids := find_other_trainings():
        print(
            f"warning: another training runs on this machine (process {', '.join(map(str, ids))}). The"
            " trainings can load each other's weights, or wait for each other forever\n"
            "  -> run one after the other, or each in a container with its own /tmp",
            flush=True,
        )
