"""Facts of a passage, and the rules that read their values: one for each way in which a relation is said.

A rule takes the first sentence and the whole text, and gives every value that it finds, with all forms of the
answer. It gives nothing for what it does not understand whole: a date that is disputed, a nationality with a
hyphen. Two values (two directors, say) are more than a fact: kinds.py leaves such a relation out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from data_process.passage_questions.vocabulary import COUNTRIES, NAME, NATION, STATES, UPPER
from rag_r1.data.answer_forms import DATE, YEAR, date_forms, nationality_forms

#: Values, each with the forms of the answer.
Values = Iterator[tuple[str, tuple[str, ...]]]


@dataclass(frozen=True)
class Fact:
    """What a passage says about its subject. `forms`: of the answer, the usual one first."""

    relation: str
    value: str
    forms: tuple[str, ...]


#: Name, life (in parentheses) and the rest of the first sentence about a person.
LIFE = re.compile(r"^(?P<name>[^()]{3,90}?),? ?\((?P<life>(?:[^()]|\([^()]*\))*)\),?(?P<rest>.*)", re.DOTALL)
IS = r"(?:is|was|are|were)"
#: What may follow the name of one person; a second name may not.
_NAME_END = (
    rf"(?=[.;:]|,(?! (?:and |& )?{UPPER})|\s?\(|$|\s(?:and (?!{UPPER})(?!his |her |their |the )|starring|"
    r"from|based|with|for|about|written|who|that|which|in|on|at|as|produced|released|featuring|under|set|"
    r"published|through|first|made|tells|telling|to)\b)"
)
_ARTISTS = (
    "band|group|singer|rapper|musician|artist|duo|trio|songwriter|singer-songwriter|composer|author|writer|"
    "novelist|guitarist|DJ|producer|pianist|recording artist|poet|playwright|journalist|historian"
)
#: Between `by` and a name: `the American rock band`.
_DESCRIPTOR = rf"(?:(?:the )?(?:[\w\-–&/]+ ){{0,6}}?(?:{_ARTISTS})s? )?"
_UNCERTAIN = re.compile(
    r"\bc\.|circa|\bor\b|\?|baptised|baptized|O\.S\.|Old Style|disputed|probably|\bca\.|/"
)
#: Before a nationality, of a person.
_BEFORE_NATION = (
    "former|retired|late|professional|prominent|noted|independent|award-winning|Grammy Award-winning|"
    "pioneering|leading|influential|contemporary|young"
)
#: After a word for a nationality that is then none.
_NO_NATION = re.compile(
    r"[-–/]|,? (?:and|or|&)\b|,? ?born| (?:football|rules|literature|language|gridiron|Idol|folk music|Civil|"
    r"Revolutionary|Army|Navy|Air|League|Premier|Open|descent|Film|Television|Academy|Parliament)\b"
)


def life_of(first: str) -> tuple[str | None, str | None]:
    """Birth and death, as full dates or years, of a life that is told without doubt."""
    match = LIFE.match(first)
    if match is None or _UNCERTAIN.search(match["life"]):
        return None, None
    life, when = match["life"].strip(), rf"({DATE}|{YEAR})\b"
    if born := re.search(rf"\b(?:born|b\.)(?: in| on)? {when}", life):
        died = re.search(rf"\b(?:died|d\.) {when}", life) or re.search(rf"[–-] ?{when}$", life)
        return born[1], died[1] if died and died.start(1) != born.start(1) else None
    lived = re.search(rf"(?:^|[;,] ?){when}(?: in [^–]+| ?, [^–\d]+)? ?[–-] ?{when}", life)
    return (lived[1], lived[2]) if lived else (None, None)


def year_of_life(which: int, first: str, text: str) -> Values:
    """The year of birth (0) or death (1)."""
    if date := life_of(first)[which]:
        yield date[-4:], (date[-4:],)


def date_of_life(which: int, first: str, text: str) -> Values:
    """The full date of birth (0) or death (1)."""
    if (date := life_of(first)[which]) and re.fullmatch(DATE, date):
        yield date_forms(date)[1], date_forms(date)


def nationality(first: str, text: str) -> Values:
    """The one nationality that follows `is a`, of a person or a band."""
    match = LIFE.match(first)
    description = match["rest"] if match else first
    is_ = re.search(rf" {IS} an? (?:(?:{_BEFORE_NATION}) )*(?P<what>[^.;]*)", description)
    nation = is_ and NATION.match(is_["what"])
    if not is_ or not nation or _NO_NATION.match(is_["what"][nation.end() :]):
        return
    clause = re.split(r"\b(?:who|known|best|whose|where)\b", is_["what"])[0]
    if len({match[0] for match in NATION.finditer(clause)}) == 1:
        yield nation[0], nationality_forms(nation[0])


def birthplace(first: str, text: str) -> Values:
    """Town and region, where they follow the date of birth."""
    match = LIFE.match(first)
    if match is None or _UNCERTAIN.search(match["life"]):
        return
    name = rf"{UPPER}[\w'’\-]+(?: {UPPER}[\w'’\-]+)*"
    birth = re.search(
        rf"born (?:{DATE}|{YEAR}),? in ({name}), ({name})(?:, ({name}))?(?=[;)–]|$| –)", match["life"]
    )
    if birth:
        full_name = ", ".join(filter(None, birth.groups()))
        yield full_name, tuple(dict.fromkeys((f"{birth[1]}, {birth[2]}", full_name, birth[1])))


def named(pattern: str, first: str, text: str) -> Values:
    """What the group of a pattern holds, without quotation marks."""
    for match in re.finditer(pattern, text):
        value = match[1].strip(' ,"')
        yield value, (value,)


def _subject_matches(pattern: str, first: str, text: str) -> list[re.Match[str]]:
    """What a pattern finds in the text, if it finds something in the first sentence or in one that begins
    with the subject (`It`, `The film`); elsewhere it may be about something else."""
    nouns = "film|movie|picture|documentary|album|EP|song|single|track|book|novel|play|series|show"
    subject = rf"It|This|(?:The|This) (?:{nouns})"
    sentences = re.findall(
        rf"(?<=\. )(?:(?:{subject})\b|Directed|Created|Released|Written|Produced|Published)[^.]*", text
    )
    matches = list(re.finditer(pattern, text))
    return matches if any(re.search(pattern, sentence) for sentence in [first, *sentences]) else []


def released(nouns: str, first: str, text: str) -> Values:
    """The year before the noun, and the years of all releases that the passage tells."""
    if "traditional" in first:
        return
    if match := re.search(
        rf" {IS} an? (?:[\w\-–]+ ){{0,3}}?({YEAR}) (?:[\w\-–/,]+ ){{0,8}}?(?:{nouns})\b", first
    ):
        yield match[1], (match[1],)
    when = rf"(?: [\w&.'-]+){{0,5}}? (?:on|in) (?:{DATE}|(?:\w+ )?{YEAR})\b"
    for match in _subject_matches(rf"\b(?:[Rr]eleased|premiered|[Pp]ublished|came out)\b{when}", first, text):
        yield match[0][-4:], (match[0][-4:],)


def person_after(lead: str, first: str, text: str) -> Values:
    """The one person that stands after words such as `directed by`; of several, two values."""
    for match in _subject_matches(rf"(?:{lead}) {_DESCRIPTOR}({NAME})?({_NAME_END})?", first, text):
        if match[1] is None or match[2] is None:
            yield match[0], ()
            yield "", ()
        else:
            yield match[1], (match[1],)


def artist(nouns: str, first: str, text: str) -> Values:
    """Who a record is by: a person or a band."""
    word = rf"{UPPER}[\w'’\-.!$]*"
    recorded = r"(?:LP |album )?(?:(?:(?:co-)?written and )?(?:recorded|performed) )?"
    end = (
        "released|issued|from|which|that|recorded|on|featuring|produced|taken|in|with|preceded|"
        "for (?:his|her|their|its)"
    )
    match = re.search(
        rf"\b(?:{nouns}) {recorded}(?:by|from) {_DESCRIPTOR}"
        rf"((?:[Tt]he )?{word}(?: (?:of the|of|and the|the|and his|&) (?={UPPER})| {word})*)"
        rf"(?=,? (?:{end})\b|,? and (?:is|was)\b|\.$|\. |, (?!{UPPER}))",
        first,
    )
    if match and not re.match(
        r"(?:American|British|English|Various|Canadian|Australian)\b|.*Records$", match[1]
    ):
        name = match[1].rstrip(".")
        yield name, tuple(dict.fromkeys((name, re.sub("^[Tt]he ", "", name))))


def founded(first: str, text: str) -> Values:
    """The years of all foundings: in the first sentence in any words, later only of the subject itself."""
    when = rf"(?:on|in) (?:{DATE}|(?:\w+ )?{YEAR})\b"
    words = "(?:ounded|stablished|ormed|ncorporated|aunched|pened)"
    founding = rf"{words} (?:[\w',-]+ ){{0,6}}?{when}"
    passive = rf"\. {UPPER}(?:(?!which|that|who)[^.,;]){{0,60}}? (?:was|were)(?: \w+)? [feilo]{founding}"
    pieces = [(rf"\b[FfEeIiLlOo]{founding}", first), (passive, text), (rf"\. [FEILO]{founding}", text)]
    for pattern, where in pieces:
        for match in re.finditer(pattern, where):
            yield match[0][-4:], (match[0][-4:],)


def place(names: str, first: str, text: str) -> Values:
    """The only state or country that the passage names, if the first sentence says `in ... NAME`."""
    if names == COUNTRIES and re.search(
        r"\b(?:United States|U\.S\.|American|New York|United Kingdom|Ireland|Soviet|Scottish)\b", text
    ):
        return
    if names == STATES and re.search(r"\b(?:New York|Georgia|Washington)\b", text):
        return
    excluded = "n|'s| County| City| Avenue| Street"
    names = rf"(?<!New South )(?<!New )(?:{names})"
    places = {match[0] for match in re.finditer(rf"\b{names}\b(?!{excluded})", text)}
    if len(places) == 1 and re.search(rf"\b(?:in|near|of) [^.;]*\b{next(iter(places))}\b", first):
        [name] = places
        yield name, (name,)
