"""Compares training on questions that a teacher wrote from a corpus with training on the world's own ones.

    python benchmarks/own_questions.py --seeds 0 1 2

For each seed the benchmark trains the demo's policy with GRPO (recipe demo/grpo, 18 steps) in the demo's
invented world, in arms that differ only in their training questions:

    own           the world's own questions
    verified      the questions that `rag-r1 questions` kept: a scripted teacher wrote them from the passages
                  of the training world, and a scripted reader with 3 % of wrong replies verified them
    unverified    all drafts of the same teacher, four in ten of which are faulty
                  (tests/fakes/question_models.py)

All arms have the same number of questions, which is more than 18 steps need. They are evaluated on the same
held-out questions: the world's own validation, about names that no arm has seen. The teacher has none of the
world's wordings: it asks "What is the birthplace of A?", where the world asks "Where was A born?".

All arms start from a policy that reads both wordings and answers a third of the questions, hardly more than
the demo's (reading_policy.py). `--policy demo` starts from the demo's, which reads the world's wordings only.

The script prints a table, and whether the claims hold whose bars are set here. Finished trainings are not
repeated, so an interrupted benchmark resumes. A seed determines the world, its questions and their order.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

# This folder has its own retrieval_server.py: look for packages in the project's root instead.
_here = Path(__file__).resolve().parent
sys.path[:] = [str(_here.parent)] + [entry for entry in sys.path if Path(entry).resolve() != _here]

from benchmarks.reading_policy import reading_policy  # noqa: E402
from rag_r1.agent.records import read_records  # noqa: E402
from rag_r1.data.rows import QuestionRow, read_rows, write_rows  # noqa: E402
from rag_r1.demo.policy import policy_path  # noqa: E402
from rag_r1.demo.run import TrainingInputs, run_demo  # noqa: E402
from rag_r1.demo.world import PROMPT_FILE, demo_data, demo_protocol, to_row, write_demo  # noqa: E402
from rag_r1.io.atomic_files import write_json_lines  # noqa: E402
from rag_r1.options.command_exit import command_main  # noqa: E402
from rag_r1.protocols import Protocol  # noqa: E402
from rag_r1.questions.drafts import Draft  # noqa: E402
from rag_r1.questions.run import write_questions  # noqa: E402
from rag_r1.questions.spec import ModelSpec, QuestionsSpec  # noqa: E402
from rag_r1.rewards import exact_match  # noqa: E402
from rag_r1.rollouts.requests import seeded_fraction  # noqa: E402
from rag_r1.runs.errors import RunError  # noqa: E402
from rag_r1.runs.markdown import Claim, number, print_table  # noqa: E402
from rag_r1.tools.retrieval.local_server import build_index, retrieval_process  # noqa: E402
from tests.fakes.question_models import Facts, answered, model_process  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
ARMS = ("own", "verified", "unverified")
RECIPE, PROTOCOL = "grpo", "rag_r1_mq"
#: Number of questions of each arm, more than 18 steps of 16 questions need.
QUESTIONS = 400
#: Number of drafts that are started for each kind; about four in ten are kept.
PER_KIND = 300
#: Share of the reader's replies that are wrong.
ERRORS = "0.03"
#: The claims: verified questions reach at least this share of the EM of the world's own and cost at most this
#: much of it, and they exceed the EM of unverified ones by at least this much.
LEAST_SHARE, MOST_LOSS, LEAST_GAIN = 0.9, 0.05, 0.02


@dataclass(frozen=True)
class Training:
    """A finished training."""

    arm: str
    seed: int
    #: The contents of results.json, with the figures of each validation.
    results: dict[str, Any]
    #: Share of the arm's questions whose gold answer differs from the world's.
    wrong: float
    #: Share of the held-out questions whose wording one of the arm's questions has.
    known: float
    #: Share of the groups that have right and wrong answers, of all groups whose question has the world's
    #: gold answer, and of the others; None without such a group.
    mixed_right: float | None
    mixed_wrong: float | None

    @property
    def ends(self) -> tuple[dict[str, float], dict[str, float]]:
        """The figures of the first and the last validation."""
        steps = sorted(self.results["held_out"], key=int)
        return self.results["held_out"][steps[0]], self.results["held_out"][steps[-1]]

    @property
    def em(self) -> float:
        """The held-out EM after the training."""
        return self.ends[1]["EM all"]


def questions_of(folder: Path, seed: int) -> dict[str, Path]:
    """Return the parquet file with the training questions of each arm, made in `folder` if they are missing.

    Raises RunError if there are too few questions.
    """
    files = {arm: folder / f"{arm}.parquet" for arm in ARMS}
    if all(path.exists() for path in files.values()):
        return files
    protocol, data = demo_protocol(PROTOCOL), demo_data(seed)
    folder.mkdir(parents=True, exist_ok=True)
    own = [to_row(question, place, "train", protocol) for place, question in enumerate(data.train)]
    passages = [passage for passage in data.passages if passage["id"].startswith("train-")]
    drafts = written_drafts(folder, seed, passages)
    rows = {"own": own, **{arm: [_row(draft, protocol) for draft in drafts[arm]] for arm in ARMS[1:]}}
    for arm, of_arm in rows.items():
        if len(of_arm) < QUESTIONS:
            raise RunError(f"{arm}: {len(of_arm)} questions are fewer than {QUESTIONS}: raise PER_KIND")
        write_rows(files[arm], of_arm[:QUESTIONS])
    return files


def written_drafts(folder: Path, seed: int, passages: Sequence[dict[str, str]]) -> dict[str, list[Draft]]:
    """Let the teacher write questions about these passages, and the reader verify them.

    Returns the questions that were kept as `verified`, and all drafts as `unverified`, in random order.
    """
    corpus, index = folder / "corpus.jsonl", folder / "index"
    write_json_lines(corpus, passages)
    if not (index / "manifest.json").exists():
        build_index(corpus, index, "--backend", "bm25")
    with (
        model_process("teacher", folder / "teacher.log", "--reworded") as teacher,
        model_process("reader", folder / "reader.log", "--errors", ERRORS) as reader,
        retrieval_process(index, folder / "retrieval.log") as url,
    ):
        spec = QuestionsSpec(
            corpus=(corpus,),
            out=folder / "questions",
            teacher=ModelSpec(teacher, "scripted"),
            reader=ModelSpec(reader, "scripted"),
            retriever_url=url,
            per_kind=PER_KIND,
            seed=seed,
            test_share=0.0,
            protocol=PROTOCOL,
            prompt=str(PROMPT_FILE),
        )
        outcomes = asyncio.run(write_questions(spec)).outcomes
    drafted = [outcome for outcome in outcomes if outcome.draft is not None]
    drafted.sort(key=lambda outcome: seeded_fraction(seed, "arm", outcome.seed.id))
    kept = [outcome.draft for outcome in drafted if outcome.is_kept]
    return {"verified": kept, "unverified": [outcome.draft for outcome in drafted]}


def _row(draft: Draft, protocol: Protocol) -> QuestionRow:
    """Return the training row of a draft."""
    return QuestionRow(
        draft.question,
        golds=tuple(draft.golds),
        prompt=tuple(protocol.messages(draft.question)),
        id=f"own-{draft.id}",
        data_source=f"demo/{draft.kind}",
        protocol=protocol.name,
        ability="search",
        metadata={"kind": draft.kind, "supporting_titles": [passage.title for passage in draft.passages]},
    )


def wrong_questions(rows: Sequence[QuestionRow], texts: Sequence[str]) -> set[str]:
    """Return the ids of questions for which the world has no answer, or one that is not a gold answer."""
    facts = [text for text in texts if Facts.of([text]).values]
    answers = [(row, answered(row.question, facts)) for row in rows]
    return {row.id for row, answer in answers if answer is None or not exact_match(answer, row.golds)}


def mixed_share(records: Iterable[Mapping[str, Any]], ids: Collection[str]) -> float | None:
    """Return the share of groups with right and wrong answers, of the groups with one of the questions; None
    if there is no such group."""
    groups: dict[str, set[bool]] = {}
    for record in records:
        # The id of a trajectory is the question's, and the number of the sample.
        if record["id"].rpartition("#")[0] in ids:
            groups.setdefault(record["group"], set()).add(bool(record["rewards"]["em"]))
    return sum(len(outcomes) == 2 for outcomes in groups.values()) / len(groups) if groups else None


def wording(question: str) -> str:
    """Return a question without its names and numbers."""
    return re.sub(r"[A-Z]\w+ [A-Z]\w+|\d{4}", "...", question)


def known_share(held_out: Sequence[str], questions: Sequence[str]) -> float:
    """Return the share of the held-out questions whose wording one of the training questions has."""
    known = set(map(wording, questions))
    return sum(wording(question) in known for question in held_out) / len(held_out)


def train(
    arm: str, seed: int, out: Path, policy: str, overrides: Sequence[str], timeout_s: float
) -> Training:
    """Run a training, or read its results if it is finished. `policy` is `reading` or `demo`."""
    questions = questions_of(out / "questions" / f"seed{seed}", seed)[arm]
    run = out / policy / f"seed{seed}" / arm
    finished = run / "results.json"
    if not finished.exists():
        start = reading_policy(out / "policy", PROTOCOL) if policy == "reading" else policy_path(PROTOCOL)
        print(f"seed {seed}: {arm}", flush=True)

        def write(data: Path, protocol: Protocol, world_seed: int) -> None:
            write_demo(data, protocol, world_seed)
            (data / "train.parquet").write_bytes(questions.read_bytes())

        inputs = TrainingInputs(demo_protocol(PROTOCOL), start, write)
        run_demo(RECIPE, run, seed, overrides, timeout_s, inputs)
    rows = [QuestionRow.from_row(row) for row in read_rows(questions)]
    # The world's own questions are right by construction, and the reader does not know all of their wordings.
    data = demo_data(seed)
    texts = [passage["contents"] for passage in data.passages]
    wrong = set() if arm == "own" else wrong_questions(rows, texts)
    known = known_share([question.text for question in data.val], [row.question for row in rows])
    records = list(read_records(run / "trajectories" / "train"))
    mixed = (mixed_share(records, ids) for ids in ({row.id for row in rows} - wrong, wrong))
    return Training(arm, seed, json.loads(finished.read_text()), len(wrong) / len(rows), known, *mixed)


def table_row(training: Training) -> list[str]:
    """Return the cells of a training's row in the table."""
    before, after = training.ends
    kinds = [name for name in after if name.startswith("EM ")]
    cells = [f"{number(before[kind], 2)} → {number(after[kind], 2)}" for kind in kinds]
    searches = f"{before['searches a question']:.1f} → {after['searches a question']:.1f}"
    shares = (
        "-" if share is None else f"{share:.0%}"
        for share in (training.wrong, training.known, training.mixed_right, training.mixed_wrong)
    )
    return [training.arm, str(training.seed), *shares, *cells, searches]


def claims(trainings: Sequence[Training]) -> list[Claim]:
    """Return the claims of the experiment, each with the number of seeds for which it holds, of those that
    have the arms that it is about. A claim without such a seed is left out."""
    by_seed: dict[int, dict[str, Training]] = {}
    for training in trainings:
        by_seed.setdefault(training.seed, {})[training.arm] = training

    def claim(text: str, arms: Sequence[str], holds: Callable[[float, float], bool]) -> Claim:
        # Rounded, since .93 - .88 is more than .05 in binary.
        ems = [
            [round(seed[arm].em, 6) for arm in arms] for seed in by_seed.values() if set(arms) <= set(seed)
        ]
        return Claim(text, sum(holds(*pair) for pair in ems), len(ems))

    judged = (
        claim(
            f"verified questions reach at least {LEAST_SHARE} of the EM of the world's own questions",
            ("own", "verified"),
            lambda own, verified: verified >= LEAST_SHARE * own,
        ),
        claim(
            f"verified questions cost at most {MOST_LOSS} EM, compared with the world's own",
            ("own", "verified"),
            lambda own, verified: round(own - verified, 6) <= MOST_LOSS,
        ),
        claim(
            f"verification is worth at least {LEAST_GAIN} EM",
            ("verified", "unverified"),
            lambda verified, unverified: round(verified - unverified, 6) >= LEAST_GAIN,
        ),
    )
    return [one for one in judged if one.seeds]


@command_main(RunError, OSError)
def main(argv: Sequence[str] | None = None) -> int:
    """Train each arm with each seed, and print the table and the claims; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--seeds", nargs="+", type=int, default=[0, 1, 2])
    add("--out", type=Path, default=ROOT / "outputs" / "own_questions", help="folder of the runs")
    add("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    add(
        "--policy",
        choices=("reading", "demo"),
        default="reading",
        help="the policy that all arms start from: one that reads both wordings, or the demo's",
    )
    add("--timeout", type=float, default=3600, metavar="SECONDS", help="time limit of each training")
    add("--set", nargs="*", default=[], metavar="key=value", help="Hydra overrides of every training")
    add("--questions-only", action="store_true", help="make the questions, and train nothing")
    args = parser.parse_args(argv)
    out = args.out.resolve()
    if args.questions_only:
        for seed in args.seeds:
            for arm, path in questions_of(out / "questions" / f"seed{seed}", seed).items():
                print(f"seed {seed}: {arm}: {path}")
        return 0
    trainings = [
        train(arm, seed, out, args.policy, args.set, args.timeout) for seed in args.seeds for arm in args.arms
    ]
    kinds = [name for name in trainings[0].ends[1] if name.startswith("EM ")]
    print(f"\n{platform.machine()}, {os.cpu_count()} cores, {date.today()}; {QUESTIONS} questions an arm\n")
    shares = ("wrong", "held-out wordings known", "mixed groups of right questions", "of wrong ones")
    columns = ("questions", "seed", *shares, *kinds, "searches")
    print_table(columns, map(table_row, trainings))
    print("", *(f"- {claim}" for claim in claims(trainings)), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
