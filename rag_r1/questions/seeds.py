"""Draws the seeds: the passages from which a question of each kind is written.

    one_hop       a fact of a passage
    number_date   the same, with a number or a date as the answer
    two_facts     what two facts of a passage lead to
    bridge        a chain of two to four linked passages: each names what the next is about
    comparison    two similar passages, and which of both
    yes_no        the same, and whether

(The kinds are those of `rag-r1 passage-questions`, and number_date.) Passages are drawn in turn from the
sources, of a source in turn from its documents, so neither a large source nor a long document fills the set.
All that is random is a hash of the seed, so a seed does not depend on what else is drawn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, get_args

from rag_r1.questions.documents import SourcePassage, is_copy
from rag_r1.questions.links import Link, Links
from rag_r1.rollouts.requests import seeded_fraction

KindName = Literal["one_hop", "number_date", "two_facts", "bridge", "comparison", "yes_no"]
KINDS: tuple[KindName, ...] = get_args(KindName)
#: Kinds of several passages, and of these the ones whose passages are alike.
MULTI_HOP = frozenset({"bridge", "comparison", "yes_no"})
PAIRS = frozenset({"comparison", "yes_no"})
#: Kinds with two possible answers, of which a guess is right half of the time.
GUESSABLE = frozenset({"comparison", "yes_no"})
#: (passages of a chain, share of the chains that have at most so many).
_LENGTHS = ((2, 0.6), (3, 0.9), (4, 1.0))
#: Passages for which similar ones are searched, for each pair that is wanted.
_STARTS_PER_PAIR = 2

#: Passage id -> ids of similar passages, best first.
Similar = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Seed:
    """The passages of a question, in the order of its steps. `ways`: how each leads to the next; `obscure`:
    the name of the first is to be replaced by a description."""

    id: str
    kind: KindName
    passages: tuple[SourcePassage, ...]
    ways: tuple[str, ...] = ()
    obscure: bool = False

    @property
    def split(self) -> str:
        """The split of all its passages."""
        return self.passages[0].split

    @property
    def planned_answer(self) -> str | None:
        """The answer of a yes_no question, in equal shares, so that always saying yes earns nothing; None for
        other kinds."""
        if self.kind != "yes_no":
            return None
        return "yes" if seeded_fraction(0, "wanted", self.id) < 0.5 else "no"


@dataclass(frozen=True)
class SeedPlan:
    """Draws the seeds from the pool of these links. `per_kind`: most seeds of each kind; `seed`: that of all
    draws; `obscure_share`: share of the bridges that hide a name."""

    links: Links
    kinds: Sequence[KindName]
    per_kind: int
    seed: int
    obscure_share: float

    def needs_similar(self) -> list[SourcePassage]:
        """The passages for which `draw` needs similar ones: the starts of pairs, and of bridges if the links
        make too few chains."""
        passages: dict[str, SourcePassage] = {}
        for kind in self.kinds:
            count = _STARTS_PER_PAIR * self.per_kind if kind in PAIRS else 0
            if kind == "bridge":
                linked = (passage for passage in self._starts(kind) if self._links(passage))
                count = self.per_kind - sum(1 for _ in islice(linked, self.per_kind))
            passages |= {passage.id: passage for passage in islice(self._starts(kind), count)}
        return list(passages.values())

    def draw(self, similar: Similar) -> list[Seed]:
        """Draw the seeds of all kinds."""
        return [seed for kind in self.kinds for seed in self._of_kind(kind, similar)]

    def _of_kind(self, kind: KindName, similar: Similar) -> list[Seed]:
        """Draw the seeds of a kind, at most `per_kind`."""
        seeds: dict[str, Seed] = {}
        for start in self._starts(kind):
            if len(seeds) == self.per_kind:
                break
            if seed := self._make(kind, start, similar):
                seeds.setdefault(seed.id, seed)
        return list(seeds.values())

    def _starts(self, kind: KindName) -> Iterator[SourcePassage]:
        """The passages in the order in which they are drawn as the first of a seed."""
        ranks: dict[str, dict[str, int]] = defaultdict(dict)
        ordered = sorted(self.links.pool.passages, key=lambda passage: self._fraction(kind, passage.id))
        for passage in ordered:
            ranks[passage.source].setdefault(passage.document, len(ranks[passage.source]))
        counts: dict[str, int] = defaultdict(int)
        ranked = []
        for passage in ordered:
            ranked.append((counts[passage.document], ranks[passage.source][passage.document], passage))
            counts[passage.document] += 1
        ranked.sort(key=lambda item: item[:2])  # stable: by hash within a rank
        return (passage for _, _, passage in ranked)

    def _make(self, kind: KindName, start: SourcePassage, similar: Similar) -> Seed | None:
        """The seed that begins with a passage; None if a kind of several passages finds no second one."""
        steps: list[tuple[SourcePassage, str]] = [(start, "")]
        if kind in PAIRS:
            steps += self._similar_passages(start, similar)[:1]
        elif kind == "bridge":
            steps = self._chain(start, similar)
        if kind in MULTI_HOP and len(steps) < 2:
            return None
        passages = tuple(passage for passage, _ in steps)
        ids = sorted(p.id for p in passages) if kind in PAIRS else [p.id for p in passages]
        name = f"{kind}-{int(seeded_fraction(0, 'seed', repr(ids)) * (1 << 48)):012x}"
        obscure = kind == "bridge" and self._fraction("obscure", name) < self.obscure_share
        return Seed(name, kind, passages, tuple(how for _, how in steps[1:]), obscure)

    def _chain(self, start: SourcePassage, similar: Similar) -> list[tuple[SourcePassage, str]]:
        """(passage, how the one before leads to it) for a chain of a drawn length, or for a shorter one."""
        fraction = self._fraction("length", start.id)
        length = next(length for length, share in _LENGTHS if fraction < share)
        chain = [(start, "")]
        while len(chain) < length and (step := self._next([p for p, _ in chain], similar)):
            chain.append(step)
        return chain

    def _next(self, chain: Sequence[SourcePassage], similar: Similar) -> tuple[SourcePassage, str] | None:
        """A passage to which the last one leads, of a document that is not in the chain: by a title if it
        names one, since that says what is asked about."""
        last = chain[-1]
        documents = {passage.document for passage in chain}
        links = [
            link for link in self._links(last) if self.links.pool.by_id[link.target].document not in documents
        ]
        links = [link for link in links if link.how == "title"] or links
        if not links and len(chain) == 1:
            return next(iter(self._similar_passages(last, similar)), None)
        if not links:
            return None
        link: Link = min(links, key=lambda link: self._fraction(last.id, link.target))
        return self.links.pool.by_id[link.target], link.how

    def _links(self, passage: SourcePassage) -> list[Link]:
        """The links that stay in the split, so that no question mixes the two."""
        links = self.links.of(passage)
        return [link for link in links if self.links.pool.by_id[link.target].split == passage.split]

    def _similar_passages(self, start: SourcePassage, similar: Similar) -> list[tuple[SourcePassage, str]]:
        """The similar passages of other documents in the same split, but for copies of the same text."""
        candidates = (self.links.pool.by_id.get(candidate) for candidate in similar.get(start.id, ()))
        return [
            (candidate, "similar")
            for candidate in candidates
            if candidate
            and candidate.document != start.document
            and candidate.split == start.split
            and not is_copy(start.contents, candidate.contents)
        ]

    def _fraction(self, purpose: str, key: str) -> float:
        return seeded_fraction(self.seed, purpose, key)
