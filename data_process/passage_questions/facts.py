"""Facts of a passage, and the rules that read their values: one for each way in which a relation is said.

A rule takes the first sentence (`opening`) and the whole text, and yields every value that it finds, with all
forms of the answer. It yields nothing for what it does not fully understand: a date that is disputed, a
nationality with a hyphen. A relation with two values (two directors, say) is left out by kinds.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from data_process.passage_questions.vocabulary import NAME, NATION_REGEX, UPPER
from rag_r1.data.answer_forms import DATE, YEAR, date_forms, nationality_forms

#: Values, each with the forms of the answer.
Values = Iterator[tuple[str, tuple[str, ...]]]


@dataclass(frozen=True)
class Fact:
    """What a passage says about its subject. `forms`: the forms of the answer, the usual one first."""

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
_UNCERTAIN = re.compile(r"\bc\.|circa|\bor\b|\?|bapti[sz]ed|O\.S\.|Old Style|disputed|probably|\bca\.|/")
#: Adjectives that may stand before the nationality of a person.
_BEFORE_NATION = (
    "former|retired|late|professional|prominent|noted|independent|award-winning|Grammy Award-winning|"
    "pioneering|leading|influential|contemporary|young"
)
#: What follows a word for a nationality that is not one there: `American football`.
_NO_NATION = re.compile(
    r"[-–/]|,? (?:and|or|&)\b|,? ?born| (?:football|rules|literature|language|gridiron|Idol|folk music|Civil|"
    r"Revolutionary|Army|Navy|Air|League|Premier|Open|descent|Film|Television|Academy|Parliament)\b"
)


def life_of(opening: str) -> tuple[str | None, str | None]:
    """Birth and death as full dates or years, from the parentheses after a person's name; None for each that
    is not given, or is uncertain."""
    match = LIFE.match(opening)
    if match is None or _UNCERTAIN.search(match["life"]):
        return None, None
    life, when = match["life"].strip(), rf"({DATE}|{YEAR})\b"
    if born := re.search(rf"\b(?:born|b\.)(?: in| on)? {when}", life):
        died = re.search(rf"\b(?:died|d\.) {when}", life) or re.search(rf"[–-] ?{when}$", life)
        return born[1], died[1] if died and died.start(1) != born.start(1) else None
    lived = re.search(rf"(?:^|[;,] ?){when}(?: in [^–]+| ?, [^–\d]+)? ?[–-] ?{when}", life)
    return (lived[1], lived[2]) if lived else (None, None)


def year_of_life(which: int, opening: str, text: str) -> Values:
    """The year of birth (0) or death (1)."""
    if date := life_of(opening)[which]:
        yield date[-4:], (date[-4:],)


def date_of_life(which: int, opening: str, text: str) -> Values:
    """The full date of birth (0) or death (1)."""
    if (date := life_of(opening)[which]) and re.fullmatch(DATE, date):
        yield date_forms(date)[1], date_forms(date)


def nationality(opening: str, text: str) -> Values:
    """The one nationality that follows `is a`, of a person or a band."""
    match = LIFE.match(opening)
    description = match["rest"] if match else opening
    is_ = re.search(rf" {IS} an? (?:(?:{_BEFORE_NATION}) )*(?P<what>[^.;]*)", description)
    nation = is_ and NATION_REGEX.match(is_["what"])
    if not is_ or not nation or _NO_NATION.match(is_["what"][nation.end() :]):
        return
    clause = re.split(r"\b(?:who|known|best|whose|where)\b", is_["what"])[0]
    if len({match[0] for match in NATION_REGEX.finditer(clause)}) == 1:
        yield nation[0], nationality_forms(nation[0])


def birthplace(opening: str, text: str) -> Values:
    """Town and region, where they follow the date of birth."""
    match = LIFE.match(opening)
    if match is None or _UNCERTAIN.search(match["life"]):
        return
    name = rf"{UPPER}[\w'’\-]+(?: {UPPER}[\w'’\-]+)*"
    birth = re.search(
        rf"born (?:{DATE}|{YEAR}),? in ({name}), ({name})(?:, ({name}))?(?=[;)–]|$| –)", match["life"]
    )
    if birth:
        full_name = ", ".join(filter(None, birth.groups()))
        yield full_name, tuple(dict.fromkeys((f"{birth[1]}, {birth[2]}", full_name, birth[1])))


def named(pattern: str, opening: str, text: str) -> Values:
    """The text that the first group of a pattern matches, without quotation marks."""
    for match in re.finditer(pattern, text):
        value = match[1].strip(' ,"')
        yield value, (value,)


def _subject_matches(pattern: str, opening: str, text: str) -> list[re.Match[str]]:
    """The matches of a pattern in the text, if one is in the first sentence or in one that begins with the
    subject (`It`, `The film`), else []: a match elsewhere may be about something else."""
    nouns = "film|movie|picture|documentary|album|EP|song|single|track|book|novel|play|series|show"
    subject = rf"It|This|(?:The|This) (?:{nouns})"
    sentences = re.findall(
        rf"(?<=\. )(?:(?:{subject})\b|Directed|Created|Released|Written|Produced|Published)[^.]*", text
    )
    matches = list(re.finditer(pattern, text))
    return matches if any(re.search(pattern, sentence) for sentence in [opening, *sentences]) else []


def released(nouns: str, opening: str, text: str) -> Values:
    """The year before the noun, and the years of all releases that the passage tells."""
    if "traditional" in opening:
        return
    if match := re.search(
        rf" {IS} an? (?:[\w\-–]+ ){{0,3}}?({YEAR}) (?:[\w\-–/,]+ ){{0,8}}?(?:{nouns})\b", opening
    ):
        yield match[1], (match[1],)
    when = rf"(?: [\w&.'-]+){{0,5}}? (?:on|in) (?:{DATE}|(?:\w+ )?{YEAR})\b"
    verbs = "[Rr]eleased|premiered|[Pp]ublished|came out"
    for match in _subject_matches(rf"\b(?:{verbs})\b{when}", opening, text):
        yield match[0][-4:], (match[0][-4:],)


def person_after(lead: str, opening: str, text: str) -> Values:
    """The one person who stands after words such as `directed by` (`lead`). For several people it yields two
    values, so the relation is left out."""
    for match in _subject_matches(rf"(?:{lead}) {_DESCRIPTOR}({NAME})?({_NAME_END})?", opening, text):
        if match[1] is None or match[2] is None:  # several people, or a name that is not understood
            yield match[0], ()
            yield "", ()
        else:
            yield match[1], (match[1],)


def artist(nouns: str, opening: str, text: str) -> Values:
    """The person or band that a record is by. `nouns`: what such a record is called, as alternatives."""
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
        opening,
    )
    others = r"(?:American|British|English|Various|Canadian|Australian)\b|.*Records$"
    if match and not re.match(others, match[1]):
        name = match[1].rstrip(".")
        yield name, tuple(dict.fromkeys((name, re.sub("^[Tt]he ", "", name))))


def founded(opening: str, text: str) -> Values:
    """The years of all foundings: in the first sentence in any words, later only of the subject itself."""
    when = rf"(?:on|in) (?:{DATE}|(?:\w+ )?{YEAR})\b"
    words = "(?:ounded|stablished|ormed|ncorporated|aunched|pened)"
    founding = rf"{words} (?:[\w',-]+ ){{0,6}}?{when}"
    passive = rf"\. {UPPER}(?:(?!which|that|who)[^.,;]){{0,60}}? (?:was|were)(?: \w+)? [feilo]{founding}"
    pieces = [(rf"\b[FfEeIiLlOo]{founding}", opening), (passive, text), (rf"\. [FEILO]{founding}", text)]
    for pattern, where in pieces:
        for match in re.finditer(pattern, where):
            yield match[0][-4:], (match[0][-4:],)


def place(names: str, ambiguous: str, opening: str, text: str) -> Values:
    """The only one of the places `names` that the passage names, if the first sentence says `in ... NAME`;
    nothing if the passage has one of the words `ambiguous`, which may mean another place. Both are
    alternatives of a pattern."""
    if re.search(rf"\b(?:{ambiguous})\b", text):
        return
    excluded = "n|'s| County| City| Avenue| Street"
    names = rf"(?<!New South )(?<!New )(?:{names})"
    places = {match[0] for match in re.finditer(rf"\b{names}\b(?!{excluded})", text)}
    if len(places) == 1 and re.search(rf"\b(?:in|near|of) [^.;]*\b{next(iter(places))}\b", opening):
        [name] = places
        yield name, (name,)
