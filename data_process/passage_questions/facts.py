"""The rules that read facts from a passage, one for each way in which a relation is expressed.

A rule takes the first sentence (`opening`) and the whole text, and yields every value that it finds, with all
forms of the answer. It yields nothing if it does not fully understand the text, as with a disputed date or a
hyphenated nationality. The table in `kinds.py` says which rules read which kind of page; a relation for which
a rule yields two values (two directors, say) is left out there. A rule that finds a value but cannot read it
yields AMBIGUOUS, so that the relation is left out, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from data_process.passage_questions.vocabulary import NAME, NATION_REGEX, UPPER
from rag_r1.data.answer_forms import DATE, YEAR, date_forms, nationality_forms

#: Values, each with the forms of the answer. Years have four digits, and dates end in the year.
Values = Iterator[tuple[str, tuple[str, ...]]]


@dataclass(frozen=True)
class Fact:
    """A statement of a passage about its subject."""

    relation: str
    value: str
    #: The forms of the value as an answer, the usual one first.
    forms: tuple[str, ...]


class Life(NamedTuple):
    """The dates in the parentheses after a person's name: full dates or years, or None if unknown."""

    birth: str | None = None
    death: str | None = None


#: Two values, for which a relation is left out.
AMBIGUOUS = (("", ()), ("?", ()))
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
#: Words between `by` and a name, such as `the American rock band`.
_DESCRIPTOR = rf"(?:(?:the )?(?:[\w\-–&/]+ ){{0,6}}?(?:{_ARTISTS})s? )?"
_UNCERTAIN = re.compile(
    r"\bc\.|circa|\bor\b|\?|bapti[sz]ed|O\.S\.|Old Style|disputed|probably|\bca\.|/|\d ?B\.?C"
)
#: Adjectives that may stand before the nationality of a person.
_BEFORE_NATION = (
    "former|retired|late|professional|prominent|noted|independent|award-winning|Grammy Award-winning|"
    "pioneering|leading|influential|contemporary|young"
)
#: What follows a nationality: a word in lower case or one of these, but no other name, as in `German
#: Shepherd`, no second nationality, and no word with which it means another thing, as in `American football`.
_AFTER_NATION = re.compile(
    r"$|,? (?:DJ|R&B|YouTuber|Olympic|Paralympic|Roman Catholic|Catholic|Anglican|Grammy)\b|"
    r",? (?!(?:and|or|born|football|rules|literature|language|gridiron|folk music|descent|horn|history|"
    r"mythology|studies)\b)[a-zà-ÿ]"
)


def life_of(opening: str) -> Life:
    """Return a person's birth and death. Either is None if it is missing or uncertain."""
    match = LIFE.match(opening)
    if match is None or _UNCERTAIN.search(match["life"]):
        return Life()
    life, when, where = match["life"].strip(), rf"({DATE}|{YEAR})\b", r"(?: ?,? in [^–;\d]+| ?, [^–;\d]+)?"
    if born := re.search(rf"\b(?:born|b\.)(?: in| on)? {when}", life):
        until = re.compile(rf"{where} ?[–-] ?{when}$")
        died = re.search(rf"\b(?:died|d\.) {when}", life) or until.match(life, born.end())
        birth, death = born[1], died and died[1]
    else:
        lived = re.search(rf"(?:^|[;,] ?){when}{where} ?[–-] ?{when}", life)
        birth, death = lived.groups() if lived else (None, None)
    return Life(birth, death) if not death or birth[-4:] <= death[-4:] else Life()


def year_of_life(event: Literal["birth", "death"], opening: str, text: str) -> Values:
    """Yield the year of a person's birth or death."""
    if date := getattr(life_of(opening), event):
        yield date[-4:], (date[-4:],)


def date_of_life(event: Literal["birth", "death"], opening: str, text: str) -> Values:
    """Yield the full date of a person's birth or death."""
    if (date := getattr(life_of(opening), event)) and re.fullmatch(DATE, date):
        yield date_forms(date)[1], date_forms(date)


def nationality(opening: str, text: str) -> Values:
    """Yield the nationality of a person or a band after `is a`, if it is the only one there."""
    match = LIFE.match(opening)
    description = match["rest"] if match else opening
    predicate = re.search(rf" {IS} an? (?:(?:{_BEFORE_NATION}) )*([^.;]*)", description)
    nation = predicate and NATION_REGEX.match(predicate[1])
    if not predicate or not nation or not _AFTER_NATION.match(predicate[1][nation.end() :]):
        return
    clause = re.split(r"\b(?:who|known|best|whose|where)\b", predicate[1])[0]
    if len({match[0] for match in NATION_REGEX.finditer(clause)}) == 1:
        yield nation[0], nationality_forms(nation[0])


def birthplace(opening: str, text: str) -> Values:
    """Yield town and region, if they follow the date of birth."""
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
    """Yield the first group of each match of a pattern, without quotation marks, unless nothing is left."""
    for match in re.finditer(pattern, text):
        if value := match[1].strip(' ,"'):
            yield value, (value,)


def _subject_matches(pattern: str, opening: str, text: str) -> list[re.Match[str]]:
    """Return the matches of a pattern in the text if one of them is surely about the subject, else [].

    Such a match is in the first sentence or in one that begins with the subject (`It`, `The film`).
    """
    nouns = "film|movie|picture|documentary|album|EP|song|single|track|book|novel|play|series|show"
    subject = rf"It|This|(?:The|This) (?:{nouns})"
    sentences = re.findall(
        rf"(?<=\. )(?:(?:{subject})\b|Directed|Created|Released|Written|Produced|Published)[^.]*", text
    )
    matches = list(re.finditer(pattern, text))
    return matches if any(re.search(pattern, sentence) for sentence in [opening, *sentences]) else []


def released(nouns: str, opening: str, text: str) -> Values:
    """Yield the year before one of the nouns, and the years of all releases that the passage mentions.

    A traditional song has no year of release. `nouns` are alternatives of a pattern.
    """
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
    """Yield the person who is named after words such as `directed by` (the pattern `lead`)."""
    for match in _subject_matches(rf"(?:{lead}) {_DESCRIPTOR}({NAME})?({_NAME_END})?", opening, text):
        # Without one of its groups, the match is of several people, or of a name that is not understood.
        yield from AMBIGUOUS if None in match.group(1, 2) else [(match[1], (match[1],))]


def artist(nouns: str, opening: str, text: str) -> Values:
    """Yield the artist of a record; `nouns` are the alternatives for the word `album` or `song`."""
    word = rf"{UPPER}[\w'’\-.!$]*"
    recorded = r"(?:LP |album )?(?:(?:(?:co-)?written and )?(?:recorded|performed) )?"
    end = (
        "released|issued|from|which|that|recorded|on|featuring|produced|taken|in|with|preceded|"
        "for (?:his|her|their|its)"
    )
    match = re.search(
        rf"\b(?:{nouns}) {recorded}(?:by|from) {_DESCRIPTOR}"
        rf"((?:[Tt]he )?{word}(?: (?:(?:of the|and the|the|and his|&) )?{word})*)"
        rf"(?=,? (?:{end})\b|,? and (?:is|was)\b|\.$|\. |, (?!{UPPER}))",
        opening,
    )
    others = r"(?:American|British|English|Various|Canadian|Australian)\b|.*Records$"
    if match and not re.match(others, match[1]):
        name = match[1].rstrip(".")
        yield name, tuple(dict.fromkeys((name, re.sub("^[Tt]he ", "", name))))


def founded(opening: str, text: str) -> Values:
    """Yield the years of all foundings; after the first sentence only those of the subject itself."""
    when = rf"(?:on|in) (?:{DATE}|(?:\w+ )?{YEAR})\b"
    year = rf" (?:[\w',-]+ ){{0,6}}?{when}"
    verbs = "founded|established|formed|incorporated|launched|opened"
    was = rf"\. {UPPER}(?:(?!which|that|who)[^.,;]){{0,60}}? (?:was|were)(?: \w+)?"
    matches = [
        *re.finditer(rf"\b(?:{verbs}|{verbs.title()}){year}", opening),
        *re.finditer(rf"{was} (?:{verbs}){year}", text),
        *re.finditer(rf"\. (?:{verbs.title()}){year}", text),
    ]
    for match in matches:
        yield match[0][-4:], (match[0][-4:],)


def place(names: str, ambiguous: str, opening: str, text: str) -> Values:
    """Yield the place in which the subject is, if the passage names only one of the places `names`.

    The first sentence must say `in ... NAME`. A passage with one of the words `ambiguous`, which may mean
    another place, yields nothing. Both arguments are alternatives of a pattern.
    """
    if re.search(rf"\b(?:{ambiguous})\b", text):
        return
    excluded = "n|'s| County| City| Avenue| Street"  # n: an adjective, such as Californian
    names = rf"(?<!New South )(?<!New )(?:{names})"
    places = {match[0] for match in re.finditer(rf"\b{names}\b(?!{excluded})", text)}
    if len(places) == 1 and re.search(rf"\b(?:in|near|of) [^.;]*\b{next(iter(places))}\b", opening):
        [name] = places
        yield name, (name,)
