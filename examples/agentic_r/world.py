"""A demo world whose near-duplicate passages mislead similarity search.

Each fact about a person or a company is stated in one passage, which has a near-duplicate without the fact.
The wording of the near-duplicate is closer to the agent's query, as that of stubs, lists and disambiguation
pages is in a real corpus:

    "Mara Torval"                                  "Mara Torval"
    Mara Torval was born in the town Karlen Ford.  Mara Torval was born in a town.

    "Mara Torval"                                  "Mara Torval"
    Mara Torval was born in the year 1912.         Mara Torval, writer.

A query is a name (`Mara Torval`), or a name with words for the relation (`Mara Torval born year`). A search
that ranks by similarity returns near-duplicates first for the name, and the longer near-duplicates also for
the second form. Moreover, the name alone does not tell which of the two facts about a person is needed; only
the question does.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from rag_r1.data.rows import QuestionRow, write_rows
from rag_r1.demo.names import TRADE
from rag_r1.demo.world import (
    DemoData,
    Lookup,
    Question,
    World,
    fresh_world,
    make_questions,
    make_world,
    to_row,
)
from rag_r1.io.atomic_files import write_json_lines
from rag_r1.protocols import Protocol

#: Comparisons are left out, since a policy of this size learns to order two years only in part.
KINDS = ("one_hop", "bridge", "both")
#: Number of questions for the agent's training.
TRAIN = 800


class Wording(NamedTuple):
    """The sentences about a relation, and the words for it in a query."""

    #: The sentence that states the fact.
    statement: str
    #: Sentences without the fact, one of which is drawn for a near-duplicate.
    near_duplicates: tuple[str, ...]
    #: The words that a second query adds to the name.
    query_words: str


#: Relation -> its wording.
WORDING = {
    "birthplace": Wording(
        "{entity} was born in the town {value}.",
        ("{entity} was born in a town.", "{entity}, {trade}."),
        "born town",
    ),
    "year": Wording(
        "{entity} was born in the year {value}.",
        ("{entity} was born in a year.", "{entity}, {trade}."),
        "born year",
    ),
    "founder": Wording(
        "The company {entity} was founded by {value}.",
        ("The company {entity} was founded by a {trade}.", "{entity}, company."),
        "founded by",
    ),
}


@dataclass(frozen=True)
class MisleadingWorld:
    """A world with its near-duplicates."""

    world: World
    #: (entity, relation) -> the passage that states the fact.
    stated: dict[tuple[str, str], dict[str, str]]

    def passage_of(self, fact: Lookup) -> dict[str, str]:
        """Return the passage that states a fact."""
        return self.stated[fact.entity, fact.relation]


def make_misleading_world(world: World, seed: int | str) -> MisleadingWorld:
    """Return the world with a passage and a near-duplicate for each fact of a relation in WORDING.

    `seed` draws the wordings.
    """
    rng = random.Random(f"misleading-{seed}-{world.split}")
    stated, passages = {}, []
    for relation, (statement, near_duplicates, _) in WORDING.items():
        for entity, value in world.facts[relation].items():
            slots = {"entity": entity, "value": value, "trade": rng.choice(TRADE)}
            passage_id = f"{world.split}-{relation}-{len(passages) // 2}"
            passage = {"id": passage_id, "contents": f'"{entity}"\n{statement.format(**slots)}'}
            distractor = f'"{entity}"\n{rng.choice(near_duplicates).format(**slots)}'
            stated[entity, relation] = passage
            passages += [passage, {"id": f"{passage_id}-near", "contents": distractor}]
    rng.shuffle(passages)
    return MisleadingWorld(replace(world, passages=tuple(passages)), stated)


def fresh_misleading_world(rng: random.Random) -> MisleadingWorld:
    """Return a new small world for one batch of supervised training."""
    return make_misleading_world(fresh_world(rng), rng.randrange(1 << 48))


def draw_questions(world: World, count: int, seed: int | str) -> list[Question]:
    """Draw `count` different questions, with the KINDS in equal shares, in random order.

    Unlike `make_questions` on its own, this asks about years as often as about places, on average, so that a
    person's name alone does not tell what is asked. Raises ValueError if the world is too small.
    """
    return make_questions(world, count, seed, KINDS, _draw_question, "misleading-questions")


def _draw_question(world: World, kind: str, rng: random.Random, id_: str) -> Question:
    """Draw facts from the world and return a question of this kind about them."""
    relation = rng.choice(("birthplace", "year"))
    people, companies = list(world.facts["birthplace"]), list(world.facts["founder"])
    word = {"birthplace": "Where", "year": "When"}[relation]
    if kind == "one_hop":
        lookups = [world.lookup(relation, rng.choice(people))]
        text = f"{word} was {lookups[0].entity} born?"
    elif kind == "both":
        lookups = [world.lookup(relation, person) for person in rng.sample(people, 2)]
        text = f"{word} were {lookups[0].entity} and {lookups[1].entity} born?"
    else:
        first = world.lookup("founder", rng.choice(companies))
        lookups = [first, world.lookup(relation, first.value)]
        text = f"{word} was the founder of {first.entity} born?"
    gold = " and ".join(fact.value for fact in lookups) if kind == "both" else lookups[-1].value
    return Question(id_, kind, text, gold, tuple(lookups))


def misleading_data(seed: int, train: int, val: int) -> tuple[DemoData, MisleadingWorld, MisleadingWorld]:
    """Return the data of a seed with its train world and its test world.

    The data has `train` questions about the first and `val` questions about the second, whose names never
    occur in training. Raises ValueError if a world has too few questions.
    """
    # Large enough for the questions of loop_settings.py; `draw_questions` refuses a world that is too small.
    worlds = [
        make_misleading_world(make_world(seed, split, people=people, places=places), seed)
        for split, people, places in (("train", 800, 250), ("test", 200, 45))
    ]
    questions = [draw_questions(worlds[0].world, train, seed), draw_questions(worlds[1].world, val, seed)]
    passages = tuple(passage for world in worlds for passage in world.world.passages)
    return DemoData(passages, *questions), *worlds


def write_misleading_data(out: Path, protocol: Protocol, seed: int, scored: int, val: int) -> None:
    """Write the corpus of both worlds and three files of questions into the folder `out`.

    `corpus.jsonl` has the passages. `train.parquet` has the agent's questions about the train world,
    `scored.parquet` has `scored` others for the retriever's data, and `val.parquet` has `val` held-out
    questions about the test world.
    """
    data, train, test = misleading_data(seed, TRAIN + scored, val)
    out.mkdir(parents=True, exist_ok=True)
    write_json_lines(out / "corpus.jsonl", data.passages)
    for name, world, questions in (
        ("train", train, data.train[:TRAIN]),
        ("scored", train, data.train[TRAIN:]),
        ("val", test, data.val),
    ):
        rows = (_row(world, question, index, name, protocol) for index, question in enumerate(questions))
        write_rows(out / f"{name}.parquet", rows)


def _row(
    world: MisleadingWorld, question: Question, index: int, split: str, protocol: Protocol
) -> QuestionRow:
    """Return a question as row `index` of a split, with its gold passages and the answers of its steps."""
    row = to_row(question, index, split, protocol)
    metadata = {
        "kind": question.kind,
        "supporting_ids": [world.passage_of(fact)["id"] for fact in question.lookups],
        # Without a judge, a passage that contains one of these answers counts as relevant.
        "step_answers": [fact.value for fact in question.lookups],
    }
    return replace(row, metadata=metadata)
