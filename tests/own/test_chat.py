"""The command that chats with the agent reads the same documents as the run."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from rag_r1.options.command_line import read_arguments
from rag_r1.own.chat import chat_lines
from rag_r1.own.plan_file import read_plan
from rag_r1.serving.terminal.arguments import ChatArguments


@pytest.mark.parametrize("skip", [True, False])
def test_files_that_the_run_leaves_out_do_not_end_the_chat(tmp_path, skip):
    documents = {"folder": str(tmp_path), "skip_bad_files": skip}
    run = SimpleNamespace(
        plan=read_plan(None, {"documents": documents}),
        out=tmp_path / "out",
        final_model=Path("trained"),
        episodes=SimpleNamespace(policy_arguments={"protocol": "rag_r1_mq"}),
    )
    *_, line = chat_lines(run)
    args = read_arguments(ChatArguments, shlex.split(line)[2:], description="")
    assert (args.documents, args.skip_bad_files) == (tmp_path, skip)
