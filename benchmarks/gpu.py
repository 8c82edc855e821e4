"""Measures a GPU in phases of at most nine minutes, each of which keeps its results when it is cut off.

    python benchmarks/gpu.py --out outputs/gpu --random-weights --phases smoke
    python benchmarks/gpu.py --out outputs/gpu --random-weights --phases memory step nf4
    python benchmarks/gpu.py --out outputs/gpu --random-weights --phases real_small --small-data data/real
    python benchmarks/gpu.py --out outputs/gpu --report docs/results/gpu.md
    python benchmarks/gpu.py --out outputs/gpu-miniature --miniature         # on a CPU, without a GPU

Each measurement is a cell with a file, OUT/cells/<phase>/<name>.json, which has its figures or the end of its
error. After a kill, a time limit or the loss of the machine, the same command resumes, also on another
machine of the same kind to which OUT was copied: a cell with a file is not measured again. To repeat a cell,
remove its file. OUT belongs to one kind of machine, one driver, one set of versions and one choice of models;
the command refuses any other.

smoke       the environment, one generation by vLLM, one small step through veRL
real_small  recipes/real_small to its end
memory      peaks of a step of veRL's engine alone, beside the preflight's estimate
step        one whole step of recipes/hardware/one_gpu_80_grpo with 7 billion parameters
nf4         adapters over nf4 against adapters over bf16
resume      kill and resume: equal to the bit, or how far off
retrieval   encoder, FAISS and the retrieval server

With --random-weights, models that are not in --models are made with random weights, so that no network is
needed: memory and speed depend only on the shape.
"""

import sys
from pathlib import Path

# This folder has its own retrieval_server.py: look for packages in the project's root instead.
_here = Path(__file__).resolve().parent
sys.path[:] = [str(_here.parent)] + [entry for entry in sys.path if Path(entry).resolve() != _here]

from benchmarks.gpu.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(__doc__ or ""))
