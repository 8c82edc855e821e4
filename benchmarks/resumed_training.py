"""Shows whether a training that was killed and resumed ends as an undisturbed one does, to the bit.

    python benchmarks/resumed_training.py --out outputs/resumed -- \\
        train --recipe real_small/grpo actor_rollout_ref.model.path=MODEL data.train_files=... \\
        rag_r1.retriever.url=http://127.0.0.1:8000 actor_rollout_ref.rollout.full_determinism=true

The arguments after `--` are those of `rag-r1`: a training of any recipe, `train` or `sft`. It is run twice
for four steps, with a checkpoint after every second: once straight, and once killed with SIGKILL after the
first checkpoint (with all of its processes, as when a machine is lost) and continued by the same command.
Then the last checkpoints are compared, the weights and the optimizer's state. A finished part is not
repeated.

A rollout is repeatable only with `rollout.full_determinism`, whose kernels vLLM has only for GPUs: on a CPU
a resumed GRPO draws other tokens, and only `sft` can be equal to the bit.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# This folder has its own retrieval_server.py: look for packages in the project's root instead.
_here = Path(__file__).resolve().parent
sys.path[:] = [str(_here.parent)] + [entry for entry in sys.path if Path(entry).resolve() != _here]

from benchmarks.killed_training import compare, run_and_kill, tensors  # noqa: E402
from rag_r1.runs.markdown import print_table  # noqa: E402
from rag_r1.training.checkpoint_steps import last_whole_step  # noqa: E402

#: The last step, and the number of steps between two checkpoints.
_STEPS, _SAVE_EVERY = 4, 2


def run(arguments: Sequence[str], out: Path) -> list[list[object]]:
    """Train straight and killed; returns a row of figures for the weights and one for the optimizer's state.

    `arguments` are those of `rag-r1`. Raises RuntimeError, with the path of the log, if a training fails.
    """
    straight, resumed = out / "straight", out / "resumed"
    if last_whole_step(straight) != _STEPS:
        _train(arguments, straight)
    if last_whole_step(resumed) is None:
        command, log = _command(arguments, resumed), _log(resumed, "killed")
        try:
            run_and_kill(command, log, lambda: last_whole_step(resumed) == _SAVE_EVERY, {})
        except RuntimeError:  # it has ended by itself, and must not pass for one that was killed
            shutil.rmtree(resumed, ignore_errors=True)
            raise
        print(f"killed after step {_SAVE_EVERY}", file=sys.stderr)
    if last_whole_step(resumed) != _STEPS:
        _train(arguments, resumed)
    rows: list[list[object]] = []
    last, first = f"global_step_{_STEPS}", f"global_step_{_SAVE_EVERY}"
    for kind in ("model", "optim"):
        original, other = (tensors(folder / last, kind) for folder in (straight, resumed))
        figures = compare(original, other, tensors(straight / first, kind))
        share = figures["of_change"]
        of_change = "–" if share is None else f"{share:.1e}"
        rows.append([kind, figures["tensors"], figures["equal"], f"{figures['largest']:.1e}", of_change])
    return rows


def _train(arguments: Sequence[str], folder: Path) -> None:
    """Run the training into a folder to its last step, also from a checkpoint that the folder has."""
    log = _log(folder, "training")
    print(f"training into {folder}; its log is {log}", file=sys.stderr)
    with log.open("w") as file:
        status = subprocess.run(_command(arguments, folder), stdout=file, stderr=subprocess.STDOUT).returncode
    if status or last_whole_step(folder) != _STEPS:
        raise RuntimeError(f"the training ended with exit status {status}: see {log}")


def _log(folder: Path, name: str) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder.with_name(f"{folder.name}-{name}.log")


def _command(arguments: Sequence[str], folder: Path) -> list[str]:
    """Return the command of the training with this folder, these steps and these checkpoints."""
    changes = [
        f"trainer.default_local_dir={folder}",
        f"trainer.total_training_steps={_STEPS}",
        f"trainer.save_freq={_SAVE_EVERY}",
        "trainer.test_freq=-1",
        "trainer.resume_mode=auto",
    ]
    if arguments[0] == "train":
        changes.append("trainer.val_before_train=false")
    return [sys.executable, "-m", "rag_r1.cli", *arguments, *changes]


def main() -> None:
    """Run the benchmark, and print its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of both trainings")
    parser.add_argument(
        "arguments", nargs="+", metavar="COMMAND", help="after --: `train` or `sft`, and its arguments"
    )
    args = parser.parse_args()
    head = ["tensors of", "number", "equal to the bit", "largest difference", "of the change"]
    print_table(head, run(args.arguments, args.out.resolve()))


if __name__ == "__main__":
    main()
