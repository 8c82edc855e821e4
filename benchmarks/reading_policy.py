"""Makes a demo policy that reads questions in two wordings: the world's and the scripted teacher's.

A language model reads both before any training with RL. The demo's policy of a million parameters was trained
on the world's wordings only, so it cannot show what training on questions in other words does to a model.
This one is made from it as it was made itself (`rag_r1.demo.warm_start`), in two phases with half of the
questions in the teacher's wordings:

    reading     traces that find the answer: what the base learned in the world's wordings
    warm start  traces with mixed strategies, of which as many fail as in the demo's own warm start, so that
                it seldom finds an answer: about a third of the held-out questions, and the demo's policy .28

The worlds are not those of any training or validation.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rag_r1.demo.phase_trainer import Row, TrainingPhase, train
from rag_r1.demo.policy import encode_trace, load_policy, policy_path, save_policy
from rag_r1.demo.trace_records import warm_traces
from rag_r1.demo.warm_start import WARM
from rag_r1.demo.world import Question, demo_protocol
from rag_r1.io.atomic_files import atomic_file
from tests.fakes.late_questions import reworded
from tests.fakes.question_models import BOTH

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as TokenizerBase


class ReadingPhase(NamedTuple):
    """The traces of a phase, and how the policy is trained on them."""

    #: Name of the mix of strategies (rag_r1/demo/traces/mixes.py).
    mix: str
    training: TrainingPhase
    #: Seed of the worlds, the questions and the strategies.
    seed: int


PHASES = {
    "reading": ReadingPhase("full", TrainingPhase(steps=300, warmup=15, lr=1e-3, matrix_lr=2e-3), 1),
    "warm start": ReadingPhase("mixed", WARM, 2),
}


def in_teachers_wording(question: Question) -> str:
    """Return the text of a question of the world in a wording of the teacher."""
    if question.kind == "both":
        plurals = {relation: plural for plural, relation in BOTH.values()}
        return plurals[question.lookups[0].relation].format(*(fact.entity for fact in question.lookups))
    return reworded(question.text.replace("When was", "In what year was"))


def reading_batches(
    tokenizer: TokenizerBase, protocol_name: str, mix: str, steps: int, seed: int
) -> Iterator[list[Row]]:
    """Yield a batch for each step; every other question is in the teacher's wording."""
    protocol = demo_protocol(protocol_name)
    for traces in warm_traces(protocol, mix, steps, seed):
        batch = []
        for index, trace in enumerate(traces):
            text = in_teachers_wording(trace.question) if index % 2 else trace.question.text
            ids, mask = encode_trace(tokenizer, protocol, protocol.messages(text), trace.segments)
            batch.append((ids, list(map(float, mask))))
        yield batch


def reading_policy(folder: Path, protocol_name: str) -> Path:
    """Return the folder of the policy, which is made if it is missing."""
    if not (folder / "model.safetensors").exists():
        model, tokenizer = load_policy(policy_path(protocol_name))
        for name, phase in PHASES.items():
            steps = phase.training.steps
            batches = reading_batches(tokenizer, protocol_name, phase.mix, steps, phase.seed)
            train(model, batches, phase.training, f"{name}, two wordings")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(folder) as part:  # a killed run leaves no unfinished folder, which would be taken
            save_policy(part, model, tokenizer)
    return folder
