"""A small invented world to ask questions about: people, towns, rivers and companies.

A world is a table of facts drawn at random from a seed: every person was born in a town in some year, every
town lies on a river, every company was founded by a person. Each person, town and company has one passage
that states its facts. There are four kinds of questions:

    one_hop     "Where was Mara Torval born?"                            one search
    bridge      "Which river flows past the birthplace of Mara Torval?"  a search, then one for its result
    comparison  "Who was born earlier, Mara Torval or Belin Vesmer?"     two independent facts and a decision
    both        "Where were Mara Torval and Belin Vesmer born?"          two independent facts: "X and Y"

The names of a world are those of one split (names.py). Because every seed draws new facts and no test name
ever occurs in training, an answer can only be read in a passage, never remembered.

    python -m rag_r1.demo.world --out DIR --protocol rag_r1_mq --seed 0

writes `corpus.jsonl` (the passages of the train and the test world, for the retrieval server) and
`train.parquet`, `val.parquet` (veRL's rows).
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rag_r1.data.rows import QuestionRow, write_rows
from rag_r1.demo.names import COMPANY, FIRST, LAST, RIVER, STEM, TOWN, TRADE, YEARS, names
from rag_r1.io.atomic_files import write_json_lines
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, argument, read_arguments
from rag_r1.protocols import Protocol, load_protocol, protocol_names

KINDS = ("one_hop", "bridge", "comparison", "both")
INDEPENDENT = ("comparison", "both")  # both facts can be looked up in one turn
PROMPT_FILE = Path(__file__).parent / "prompt.txt"
PROMPT = PROMPT_FILE.read_text(encoding="utf-8")


@dataclass(frozen=True)
class Lookup:
    """One fact: a search for `entity` finds a passage that gives `value` (a town, year, river or person)."""

    entity: str
    relation: str
    value: str


@dataclass(frozen=True)
class Question:
    """`lookups`: the facts that the answer needs, for a bridge in this order."""

    id: str
    kind: str
    text: str
    gold: str
    lookups: tuple[Lookup, ...]


@dataclass(frozen=True)
class World:
    """Facts by relation (entity -> value) and the passages that state them (`{"id", "contents"}`)."""

    split: str
    facts: dict[str, dict[str, str]]
    passages: tuple[dict[str, str], ...]

    def lookup(self, relation: str, entity: str) -> Lookup:
        """The fact of an entity."""
        return Lookup(entity, relation, self.facts[relation][entity])

    def draw_lookups(self, relation: str, count: int, rng: random.Random) -> tuple[Lookup, ...]:
        """Facts of `count` different entities."""
        return tuple(self.lookup(relation, name) for name in rng.sample(list(self.facts[relation]), count))


def make_world(seed: int, split: str, people: int, places: int, words: int = 48) -> World:
    """A world of `people` persons and `places` towns, rivers and companies each; `seed` draws the facts.

    `words` limits how many words each pool of names uses: with few words, the passages of a small world are
    as easy to confuse as those of a large one. Raises ValueError if the split does not have enough names.
    """
    rng = random.Random(f"world-{seed}-{split}")
    vocabulary = {*TOWN, *RIVER, *COMPANY}
    vocabulary.update(word for pool in (FIRST, LAST, STEM) for word in rng.sample(pool, words))

    def draw(first: Sequence[str], second: Sequence[str], count: int) -> list[str]:
        pool = [name for name in names(first, second, split) if vocabulary.issuperset(name.split())]
        if count > len(pool):
            raise ValueError(f"split {split!r} has {len(pool)} such names, not {count}")
        return rng.sample(pool, count)

    persons = draw(FIRST, LAST, people)
    towns, rivers, companies = (draw(STEM, second, places) for second in (TOWN, RIVER, COMPANY))
    facts = {
        "birthplace": {person: rng.choice(towns) for person in persons},
        "year": {person: rng.choice(YEARS) for person in persons},
        "river": {town: rng.choice(rivers) for town in towns},
        "founder": {company: rng.choice(persons) for company in companies},
    }
    passages = tuple(
        {"id": f"{split}-{i}", "contents": f'"{title}"\n{text}'}
        for i, (title, text) in enumerate(_statements(facts, rng))
    )
    return World(split, facts, passages)


def _statements(facts: dict[str, dict[str, str]], rng: random.Random) -> Iterator[tuple[str, str]]:
    """Title and text of each passage; `rng` draws the trades."""
    for person, town in facts["birthplace"].items():
        yield person, f"The {rng.choice(TRADE)} {person} was born in {town} in {facts['year'][person]}."
    for town, river in facts["river"].items():
        yield town, f"The town {town} lies on the river {river}."
    for company, person in facts["founder"].items():
        yield company, f"The company {company} was founded by {person}."


def fresh_world(rng: random.Random) -> World:
    """A new small world for one batch of supervised training."""
    return make_world(rng.randrange(1 << 48), "train", people=20, places=10, words=12)


#: The text, the answer and the facts of a question.
_Draw = tuple[str, str, tuple[Lookup, ...]]


def _one_hop(world: World, rng: random.Random) -> _Draw:
    relation = rng.choice(("birthplace", "birthplace", "year", "river", "founder"))
    (fact,) = world.draw_lookups(relation, 1, rng)
    text = {
        "birthplace": "Where was {} born?",
        "year": "When was {} born?",
        "river": "Which river flows past {}?",
        "founder": "Who founded {}?",
    }[relation]
    return text.format(fact.entity), fact.value, (fact,)


def _bridge(world: World, rng: random.Random) -> _Draw:
    if rng.random() < 0.5:
        relations, text = ("birthplace", "river"), "Which river flows past the birthplace of {}?"
    else:
        relations, text = ("founder", "birthplace"), "Where was the founder of {} born?"
    (first,) = world.draw_lookups(relations[0], 1, rng)
    second = world.lookup(relations[1], first.value)
    return text.format(first.entity), second.value, (first, second)


def _comparison(world: World, rng: random.Random) -> _Draw:
    a, b = facts = world.draw_lookups("year", 2, rng)
    if a.value == b.value:
        return _comparison(world, rng)
    return f"Who was born earlier, {a.entity} or {b.entity}?", (a if a.value < b.value else b).entity, facts


def _both(world: World, rng: random.Random) -> _Draw:
    relation = rng.choice(("birthplace", "founder"))
    facts = world.draw_lookups(relation, 2, rng)
    text = {"birthplace": "Where were {} and {} born?", "founder": "Who founded {} and {}?"}[relation]
    return text.format(*(fact.entity for fact in facts)), " and ".join(fact.value for fact in facts), facts


_DRAWS = {"one_hop": _one_hop, "bridge": _bridge, "comparison": _comparison, "both": _both}


def draw_question(world: World, kind: str, rng: random.Random, id_: str) -> Question:
    """A question of one of the KINDS."""
    text, gold, lookups = _DRAWS[kind](world, rng)
    return Question(id_, kind, text, gold, lookups)


def make_questions(
    world: World,
    count: int,
    seed: int | str,
    kinds: Sequence[str] = KINDS,
    ask: Callable[[World, str, random.Random, str], Question] = draw_question,
    name: str = "questions",
) -> list[Question]:
    """`count` different questions, the `kinds` (which may repeat) in equal shares, in random order.

    `ask` draws a question of a kind, with an id; `name` distinguishes its draws. Raises ValueError if the
    world is too small for that many.
    """
    rng = random.Random(f"{name}-{seed}-{world.split}")
    by_text: dict[str, Question] = {}
    misses = 0
    while len(by_text) < count:
        question = ask(world, kinds[len(by_text) % len(kinds)], rng, f"{world.split}-{len(by_text)}")
        if question.text not in by_text:
            by_text[question.text] = question
        elif (misses := misses + 1) > 100 * count:
            raise ValueError(f"this world does not have {count} different questions: ask for fewer")
    questions = list(by_text.values())
    rng.shuffle(questions)
    return questions


def to_row(question: Question, index: int, split: str, protocol: Protocol) -> QuestionRow:
    """A question as a row of the data set; `data_source` groups validation metrics by kind."""
    return QuestionRow(
        question.text,
        golds=(question.gold,),
        prompt=tuple(protocol.messages(question.text)),
        id=question.id,
        split=split,
        data_source=f"demo/{question.kind}",
        protocol=protocol.name,
        index=index,
        ability="search",
        metadata={
            "kind": question.kind,
            # Each entity has a passage of its own, which states its fact.
            "supporting_titles": [lookup.entity for lookup in question.lookups],
        },
    )


@dataclass(frozen=True)
class DemoData:
    """The data of one demo run: the passages of both worlds, training questions, held-out questions."""

    passages: tuple[dict[str, str], ...]
    train: list[Question]
    val: list[Question]


def demo_data(seed: int, train: int = 4000, val: int = 160) -> DemoData:
    """The train world (1,000 people) and the test world (200 people) of a seed, with questions about each."""
    train_world = make_world(seed, "train", people=1000, places=200)
    test_world = make_world(seed, "test", people=200, places=45)
    return DemoData(
        train_world.passages + test_world.passages,
        make_questions(train_world, train, seed),
        make_questions(test_world, val, seed),
    )


def write_demo(
    out: Path,
    protocol: Protocol,
    seed: int,
    train: int = 4000,
    val: int = 160,
    make: Callable[[int, int, int], DemoData] = demo_data,
) -> DemoData:
    """Write `corpus.jsonl`, `train.parquet` and `val.parquet` into the folder `out`, and return the data,
    which `make` makes of `seed`, `train` and `val`."""
    data = make(seed, train, val)
    out.mkdir(parents=True, exist_ok=True)
    write_json_lines(out / "corpus.jsonl", data.passages)
    for name, questions in (("train", data.train), ("val", data.val)):
        rows = (to_row(question, index, name, protocol) for index, question in enumerate(questions))
        write_rows(out / f"{name}.parquet", rows)
    return data


def prompt_file(protocol: str) -> Path:
    """The demo's prompt for a protocol: one of its own, if there is one."""
    file = PROMPT_FILE.with_name(f"prompt_{protocol}.txt")
    return file if file.exists() else PROMPT_FILE


def demo_protocol(name: str) -> Protocol:
    """A shipped protocol with the demo's short prompt, which keeps a tiny policy's sequences short."""
    return load_protocol(name, prompt=prompt_file(name).read_text(encoding="utf-8"))


class WorldArguments(Arguments):
    """Which world, and where it is written."""

    out: Path = argument("folder for corpus.jsonl, train.parquet and val.parquet")
    protocol: str = argument(f"protocol: {', '.join(protocol_names())}, or a YAML file", default="rag_r1_mq")
    seed: int = argument("seed of the facts and the questions", default=0)
    train: int = argument("number of training questions", default=4000)
    val: int = argument(
        "number of held-out questions, about names that do not occur in training", default=160
    )


@command_main(ValueError, OSError)
def main(argv: Sequence[str] | None = None) -> int:
    args = read_arguments(
        WorldArguments,
        argv,
        prog="python -m rag_r1.demo.world",
        description="Write the demo world: a corpus for the retrieval server, questions as veRL parquet.",
    )
    data = write_demo(args.out, demo_protocol(args.protocol), args.seed, args.train, args.val)
    counts = f"{len(data.passages)} passages, {len(data.train)} training, {len(data.val)} held-out questions"
    print(f"{args.out}: {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
