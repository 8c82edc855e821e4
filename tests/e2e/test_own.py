"""`rag-r1 own` from documents to a trained agent, with real trainings: SFT, the filter, two steps of GRPO."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rag_r1.data.rows import QuestionRow, read_rows
from rag_r1.demo.world import PROMPT_FILE, make_world
from rag_r1.options.command_line import read_arguments
from rag_r1.serving.terminal.arguments import ChatArguments
from tests.e2e.left_behind import remaining_processes
from tests.fakes.own_teacher import OwnTeacher, write_documents
from tests.own.conftest import KINDS, MODEL

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(4000)]

ROOT = Path(__file__).parents[2]
AT_MOST_S = 3600
STEPS = 2
SMALL = (
    "sft.overrides=[data.train_batch_size=8]",
    "filter.share=1",
    "filter.replays=2",
    "grpo.overrides=[data.train_batch_size=8,actor_rollout_ref.actor.ppo_mini_batch_size=8,"
    "actor_rollout_ref.rollout.n=4]",
    f"policy.prompt={PROMPT_FILE}",
    f"questions.kinds={KINDS}",
    "questions.test_share=0.3",
)


def run(documents: Path, out: Path, teacher: str) -> str:
    """The command's output."""
    words = ["own", str(documents), "--out", str(out), "--teacher", teacher, "--model", str(MODEL)]
    words += ["--platform", "cpu", "--per-kind", "60", "--steps", str(STEPS), *SMALL]
    log = out.parent / "own.log"
    with log.open("w") as output:
        done = subprocess.run(
            [sys.executable, "-m", "rag_r1.cli", *words],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=AT_MOST_S,
        )
    text = log.read_text()
    assert done.returncode == 0, text[-3000:]
    return text


def test_documents_end_as_a_trained_agent_a_report_and_a_command_that_chats(tmp_path):
    documents = write_documents(
        tmp_path / "documents", make_world(0, "train", people=60, places=20, words=24)
    )
    out = tmp_path / "out"
    with OwnTeacher() as teacher:
        output = run(documents, out, teacher.base)
        asked = len(teacher.bodies)
    report = json.loads((out / "report.json").read_text())
    assert list(report["models"]) == ["untrained", "one_shot", "fine_tuned", "trained"]
    assert [claim["models"] for claim in report["claims"]] == [
        ["trained", "untrained"],
        ["trained", "one_shot"],
        ["trained", "fine_tuned"],
    ]
    assert list(report["curves"]["reward"]) == ["1", "2"] and report["card"]
    assert list(report["curves"]["held_out_em"]) == ["0", "2"]
    assert report["models"]["trained"]["questions"] == report["steps"]["questions"]["rows"]["test"]
    assert (out / "report.png").exists() and remaining_processes(out) == []

    program, command, *words = shlex.split(output.splitlines()[-1])
    chat = read_arguments(ChatArguments, words, description="")
    assert (program, command) == ("rag-r1", "chat") and chat.documents == documents
    assert any(Path(chat.model).glob("*.safetensors")) and "grpo" in chat.model
    row = next(iter(read_rows(out / "questions" / "train.parquet")))
    asking = [
        sys.executable,
        "-m",
        "rag_r1.cli",
        command,
        *words,
        "--ask",
        QuestionRow.from_row(row).question,
    ]
    chatted = subprocess.run(asking, cwd=ROOT, timeout=600, capture_output=True, text=True)
    assert chatted.returncode == 0, chatted.stdout[-2000:] + chatted.stderr[-2000:]

    with OwnTeacher() as other:  # the first one has ended: all that it was asked for is done
        again = run(documents, out, other.base)
        assert not other.bodies and asked
    assert again.count("was done before") == 12
    assert again.splitlines()[-1] == output.splitlines()[-1]
