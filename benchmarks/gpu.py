"""Measures a GPU, in phases of at most nine minutes that each leave what they have measured when cut off.

    python benchmarks/gpu.py --out outputs/gpu --random-weights --phases smoke
    python benchmarks/gpu.py --out outputs/gpu --random-weights --phases memory step nf4
    python benchmarks/gpu.py --out outputs/gpu --random-weights --phases real_small --small-data data/real
    python benchmarks/gpu.py --out outputs/gpu --report docs/results/gpu.md
    python benchmarks/gpu.py --out outputs/gpu-miniature --miniature         # on a CPU, without a GPU

Each measurement is a cell and has a file, OUT/cells/<phase>/<name>.json, with its figures or the end of its
error. The same command goes on after a kill, a time limit or a lost machine, with OUT carried to the next
one of the same kind: what has a file is not measured again. To repeat a cell, remove its file. OUT keeps one
machine, its driver and versions and one choice of models; others are refused.

smoke       the environment, one generation by vLLM, one small step through veRL
real_small  recipes/real_small to its end
memory      peaks of a step of veRL's engine alone, beside the preflight's estimate
step        one whole step of recipes/hardware/one_gpu_80_grpo with 7 billion parameters
nf4         adapters over nf4 against adapters over bf16
resume      kill and resume: equal to the bit, or how far off
retrieval   encoder, FAISS and the retrieval server

Models that are not in --models are made with random weights (--random-weights), so no network is needed:
memory and speed depend on the shape alone.
"""

import sys
from pathlib import Path

# This folder has its own retrieval_server.py: look for packages in the project's root instead.
_here = Path(__file__).resolve().parent
sys.path[:] = [str(_here.parent)] + [entry for entry in sys.path if Path(entry).resolve() != _here]

from benchmarks.gpu.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(__doc__ or ""))
