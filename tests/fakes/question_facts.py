"""The sentences of the corpus in which questions are written, and the facts that somebody reads in them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

#: Sentence -> the relations of its groups: the first group is what it is about.
SENTENCES = {
    r"The (?P<trade>\w+) (?P<entity>\w+ \w+) was born in (?P<birthplace>\w+ \w+) in (?P<year>\d+)": "person",
    r"The town (?P<entity>\w+ \w+) lies on the river (?P<river>\w+ \w+)\.": "town",
    r"The company (?P<entity>\w+ \w+) was founded by (?P<founder>\w+ \w+)\.": "company",
    r"The sign of (?P<entity>\w+ \w+) is a (?P<sign>\w+ \w+)\.": "",
    r"(?P<entity>[A-Z]\w+ [A-Z]\w+) moved away in (?P<moved>\d+)\.": "",
    r"The mayor of (?P<entity>\w+ \w+) is (?P<mayor>\w+ \w+)\.": "",
    r"The hall of (?P<entity>\w+ \w+) was built around (?P<built>\d+)\.": "",
}
COMMON = re.compile(r"It is taxed in (\w+), the capital of (\w+)\.")
#: What a reader knows without any passage.
CAPITALS = dict(
    pair.split(":")
    for pair in (
        "France:Paris Italy:Rome Spain:Madrid Norway:Oslo Austria:Vienna Portugal:Lisbon Greece:Athens "
        "Peru:Lima Poland:Warsaw Ireland:Dublin Finland:Helsinki Sweden:Stockholm Denmark:Copenhagen "
        "Japan:Tokyo Egypt:Cairo Kenya:Nairobi Chile:Santiago Cuba:Havana Iceland:Reykjavik Latvia:Riga "
        "Estonia:Tallinn Croatia:Zagreb Serbia:Belgrade Bulgaria:Sofia Turkey:Ankara Iran:Tehran Iraq:Baghdad"
    ).split()
)


def fraction(purpose: str, text: str) -> float:
    """From 0 to 1, by a hash."""
    return int.from_bytes(hashlib.sha256(f"{purpose}/{text}".encode()).digest()[:6], "big") / (1 << 48)


@dataclass
class Facts:
    """What sentences say: (relation, entity) -> value, and the kind of each entity."""

    values: dict[tuple[str, str], str]
    kinds: dict[str, str]

    @classmethod
    def of(cls, texts: Sequence[str]) -> Facts:
        values, kinds = {}, {}
        for text in texts:
            for pattern, kind in SENTENCES.items():
                for match in re.finditer(pattern, text):
                    entity = match["entity"]
                    if kind:
                        kinds.setdefault(entity, kind)
                    for relation, value in match.groupdict().items():
                        if relation != "entity":
                            values.setdefault((relation, entity), value)
        return cls(values, kinds)

    def get(self, relation: str, entity: str | None) -> str | None:
        return self.values.get((relation, entity or ""))

    def having(self, **wanted: str) -> list[str]:
        """The entities with these values."""
        return [e for e in self.kinds if all(self.get(name, e) == value for name, value in wanted.items())]
