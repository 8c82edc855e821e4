"""The command of docs/guides/exporting.md, as it stands there."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "exporting.md"


def export(actor: Path, target: Path) -> None:
    """Run the guide's command with these two folders in the place of its own."""
    blocks = GUIDE.read_text(encoding="utf-8").split("```bash\n")[1:]
    block = next(block for block in blocks if "model_merger" in block).partition("```")[0]
    command = shlex.split(block.replace("\\\n", " "))
    python = command.index("python")
    variables = dict(word.split("=", 1) for word in command[:python])
    command = [sys.executable, *command[python + 1 :]]
    command[command.index("--local_dir") + 1] = str(actor)
    command[command.index("--target_dir") + 1] = str(target)
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-4000:]
