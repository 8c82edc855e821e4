"""A small invented world to ask questions about: people, towns, rivers and companies.

A world is a table of facts drawn at random from a seed: every person was born in a town in some year, every
town lies on a river, every company was founded by a person. Each person, town and company has one passage
that states its facts. There are four kinds of questions:

    one_hop     "Where was Mara Torval born?"                            one search
    bridge      "Which river flows past the birthplace of Mara Torval?"  a search, then one for its result
    comparison  "Who was born earlier, Mara Torval or Belin Vesmer?"     two independent facts and a decision
    both        "Where were Mara Torval and Belin Vesmer born?"          two independent facts: "X and Y"

Every name has two words. The set of all word pairs has a fixed split into `train` (the warm start and
reinforcement learning) and `test`. Because every seed draws new facts and no test name ever occurs in
training, an answer can only be read in a passage, never remembered.

    python -m rag_r1.demo.world --out DIR --protocol rag_r1_mq --seed 0

writes `corpus.jsonl` (the passages of the train and the test world, for the retrieval server) and
`train.parquet`, `val.parquet` (veRL's rows).
"""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rag_r1.data.rows import QuestionRow, write_rows
from rag_r1.io.atomic_files import write_json_lines
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, argument, read_arguments
from rag_r1.protocols import Protocol, load_protocol, protocol_names

KINDS = ("one_hop", "bridge", "comparison", "both")
INDEPENDENT = ("comparison", "both")  # both facts can be looked up in one turn
PROMPT_FILE = Path(__file__).parent / "prompt.txt"
PROMPT = PROMPT_FILE.read_text(encoding="utf-8")

FIRST = [a + b for a in "Ma Be Ti Ro Se Do".split() for b in "ra lin vo mi ten sa ric lo".split()]
LAST = [a + b for a in "Tor Lun Ves Hal Gri Ost".split() for b in "val mer ski den ott ham rin gard".split()]
STEM = [a + b for a in "Kar Vel Zan Mor Ila Pes".split() for b in "len da tis bor nek mu fas gol".split()]
TOWN = "Ford Mill Bridge Haven Cross Hill Moor Gate".split()
RIVER = "Water Brook Beck Run Stream Burn Flow Creek".split()
COMPANY = "Works Motors Foundry Bank Press Foods Glass Steel".split()
TRADE = "painter singer doctor writer pilot teacher farmer miner".split()
NAME_WORDS = (*FIRST, *LAST, *STEM, *TOWN, *RIVER, *COMPANY)  # of all names
YEARS = [str(year) for year in range(1901, 1931)]


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


def names(first: Sequence[str], second: Sequence[str], split: str) -> list[str]:
    """All two-word names of a split, disjoint and the same for all seeds; one name in six is a test name."""
    pairs = (f"{a} {b}" for a in first for b in second)
    return [pair for pair in pairs if (zlib.crc32(pair.encode()) % 6 == 0) == (split == "test")]


def make_world(seed: int, split: str, people: int, places: int, words: int = 48) -> World:
    """A world of `people` persons and `places` towns, rivers and companies each; `seed` draws the facts.

    `words` limits how many words each pool of names uses: with few words, the passages of a small world are
    as easy to confuse as those of a large one. Raises ValueError if the split does not have enough names.
    """
    rng = random.Random(f"world-{seed}-{split}")
    keep = {*TOWN, *RIVER, *COMPANY}
    keep.update(word for pool in (FIRST, LAST, STEM) for word in rng.sample(pool, words))

    def draw(first: Sequence[str], second: Sequence[str], count: int) -> list[str]:
        pool = [name for name in names(first, second, split) if keep.issuperset(name.split())]
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
    texts = [
        (person, f"The {rng.choice(TRADE)} {person} was born in {town} in {facts['year'][person]}.")
        for person, town in facts["birthplace"].items()
    ]
    texts += [(town, f"The town {town} lies on the river {river}.") for town, river in facts["river"].items()]
    founders = facts["founder"].items()
    texts += [(name, f"The company {name} was founded by {person}.") for name, person in founders]
    passages = tuple(
        {"id": f"{split}-{i}", "contents": f'"{title}"\n{text}'} for i, (title, text) in enumerate(texts)
    )
    return World(split, facts, passages)


def fresh_world(rng: random.Random) -> World:
    """A new small world for one batch of supervised training."""
    return make_world(rng.randrange(1 << 48), "train", people=20, places=10, words=12)


def _ask(world: World, kind: str, rng: random.Random, id_: str) -> Question:
    facts = world.facts

    def look(relation: str, entity: str) -> Lookup:
        return Lookup(entity, relation, facts[relation][entity])

    def sample(relation: str, count: int = 1) -> list[str]:
        return rng.sample(list(facts[relation]), count)

    if kind == "one_hop":
        relation = rng.choice(("birthplace", "birthplace", "year", "river", "founder"))
        (entity,) = sample(relation)
        lookups = (look(relation, entity),)
        text = {
            "birthplace": "Where was {} born?",
            "year": "When was {} born?",
            "river": "Which river flows past {}?",
            "founder": "Who founded {}?",
        }[relation].format(entity)
        gold = lookups[0].value
    elif kind == "bridge" and rng.random() < 0.5:
        (person,) = sample("birthplace")
        lookups = (look("birthplace", person), look("river", facts["birthplace"][person]))
        text, gold = f"Which river flows past the birthplace of {person}?", lookups[1].value
    elif kind == "bridge":
        (company,) = sample("founder")
        lookups = (look("founder", company), look("birthplace", facts["founder"][company]))
        text, gold = f"Where was the founder of {company} born?", lookups[1].value
    elif kind == "both":
        relation = rng.choice(("birthplace", "founder"))
        form = {"birthplace": "Where were {} and {} born?", "founder": "Who founded {} and {}?"}[relation]
        lookups = tuple(look(relation, entity) for entity in sample(relation, 2))
        text = form.format(*(lookup.entity for lookup in lookups))
        gold = " and ".join(lookup.value for lookup in lookups)
    else:
        a, b = sample("year", 2)
        while facts["year"][a] == facts["year"][b]:
            a, b = sample("year", 2)
        lookups = (look("year", a), look("year", b))
        text, gold = f"Who was born earlier, {a} or {b}?", min(a, b, key=facts["year"].__getitem__)
    return Question(id_, kind, text, gold, lookups)


def make_questions(
    world: World,
    count: int,
    seed: int | str,
    kinds: Sequence[str] = KINDS,
    ask: Callable[[World, str, random.Random, str], Question] = _ask,
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
