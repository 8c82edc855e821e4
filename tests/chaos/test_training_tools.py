"""A training whose tools fail: one always raises, one never answers, and the MCP server of a third is killed
in the middle of its first call. It ends with all its steps, and every failure is counted by the tool's name.

The demo's policy has learned to search and knows of no tools. So the protocol here has a block for each tool
that begins as a search does and differs in its closing tag, which takes the last letter of the query: what
the policy looks up decides which tool it calls. The questions of the three steps call each of them
(`data.seed`). What the training must have left behind stands in tool_checks.py.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from rag_r1.demo.policy import policy_path
from rag_r1.tools.mcp.tool import has_mcp
from tests.chaos.tool_checks import BROKEN, CHECKS, HANGING, OF_MCP, ToolRun
from tests.e2e.demo_training import GROUP, QUESTIONS, Training, hydra

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nightly,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(not has_mcp(), reason="mcp 2 is not installed: pip install 'rag-r1[mcp]'"),
]

STEPS = 3
PROTOCOL = f"""\
extends: rag_r1_mq
name: search_and_tools
blocks:
  {BROKEN}: {{tags: ["<search> ", "s </search>"], role: call, syntax: list, tool: {BROKEN}}}
  {HANGING}: {{tags: ["\\n<search>", "l </search>"], role: call, syntax: list, tool: {HANGING}}}
  {OF_MCP}: {{tags: ["\\n<search> ", "m </search>"], role: call, syntax: list, tool: {OF_MCP}}}
"""


class KilledOnce:
    """For the length of the block: kills the MCP server that holds back its calls in the folder `held`, and
    lets its successor answer."""

    def __init__(self, held: Path):
        held.mkdir()
        self.held, self.kills = held, 0
        self.over, self.thread = threading.Event(), threading.Thread(target=self.run)

    def run(self) -> None:
        while not (self.held / "pid").exists():
            if self.over.wait(0.02):
                return
        (self.held / "go-on").touch()
        os.kill(int((self.held / "pid").read_text()), signal.SIGKILL)
        self.kills += 1

    def __enter__(self) -> KilledOnce:
        self.thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.over.set()
        self.thread.join()


@pytest.fixture(scope="module")
def trained(demo_index, make_module_server, tmp_path_factory) -> ToolRun:
    out = tmp_path_factory.mktemp("tools")
    protocol, held = out / "protocol.yaml", out / "held"
    protocol.write_text(PROTOCOL)
    server = ROOT / "tests" / "fakes" / "small_mcp_server.py"
    entries = {
        BROKEN: f"tests.chaos.failing_tools:{BROKEN}",
        HANGING: f"tests.chaos.failing_tools:{HANGING}",
        OF_MCP: {
            "tool": "mcp",
            "command": [sys.executable, "-S", str(server), "hold", str(held)],
            "limits": {"retries": 0},
        },
    }
    overrides = (
        f"trainer.total_training_steps={STEPS}",
        "data.seed=1",
        f"rag_r1.protocol={protocol}",
        f"+rag_r1.tools={hydra(entries)}",
        "rag_r1.failures.wait_s=0.1",
    )
    run = Training(out, "run", demo_index / "data", make_module_server().url, overrides)
    with KilledOnce(held) as killed:
        try:
            run.start()
            assert run.finish(900) == 0, run.tail()
        finally:
            run.stop()
    return ToolRun(out, policy_path("rag_r1_mq"), killed.kills, STEPS, QUESTIONS * GROUP)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_finished_training(trained, check):
    check(trained)
