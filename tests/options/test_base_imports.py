"""What every command imports before it knows whether it has its extra: the base dependencies, nothing else.

The wheel's tests say the same of an environment without extras; this says it in seconds.
"""

from __future__ import annotations

import subprocess
import sys

#: The modules of the extras that parsers and checks of the base installation are tempted to import.
EXTRAS = (
    "duckdb",
    "fastapi",
    "faiss",
    "hydra",
    "mcp",
    "omegaconf",
    "ray",
    "torch",
    "transformers",
    "verl",
    "vllm",
)
_IMPORT_ALL = f"""
import sys
from importlib import import_module

sys.modules.update(dict.fromkeys({EXTRAS!r}))
from rag_r1.cli import COMMANDS

for name, _ in COMMANDS.values():
    for below, _ in getattr(import_module(name), "COMMANDS", {{}}).values():
        import_module(below.partition(":")[0])
"""


def test_no_module_of_a_command_imports_an_extra():
    done = subprocess.run([sys.executable, "-c", _IMPORT_ALL], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-1000:]
