"""Reads the wording of a question: whether it is one question, what it refers to, and what it names.

Closed classes of words (question words, pronouns, auxiliaries) decide where they suffice, and otherwise lists
of nouns. The patterns are for English and find nothing in other languages, but `unknown_names` reads every
script that has capital letters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

_PREPOSITION = r"(?:in|on|at|by|from|for|with|to|of|since|until|during|under)"
_AUXILIARY_VERB = r"(?:is|are|was|were|has|have|had|do|does|did|can|could|will|would|should)"
#: Signs of a second question: text after a question mark, a second question word, or an inverted clause. "and
#: who", "and which" and "and whose" mostly begin relative clauses, and "and what other" ends a list.
_SECOND_QUESTION = re.compile(
    r"\?\s+\S*[A-Z¿]"
    r"|\b(?:and|or|plus|as well as),? (?:also |then )?"
    rf"(?:{_PREPOSITION} (?:what|which|whom)|what(?! other)|where|when|why|how)\b"
    r"|\b(?:[Ww]ho|[Ww]hat|[Ww]here|[Ww]hen|[Ww]hy|[Hh]ow) (?:and|or) (?:who|which)\b"
    rf"|\band,? {_AUXILIARY_VERB} (?:I|you|he|she|it|we|they)\b"
    r"|\band,? (?:do|does|did) (?:the|an?|[A-Z]\w+)\b"
)
#: Nouns of a text.
_TEXT = (
    r"(?:passages?|texts?|excerpts?|paragraphs?|contexts?|snippets?|documents?|articles?|sources?|sentences?)"
)
#: Further nouns, which mean a text only after "according to the" or before "says".
_REPORT = (
    r"(?:account|author|description|entry|list|material|narrator|page|piece|record|report|section|summary)"
)
#: References to a passage, which a reader of the question alone does not see.
_REFERENCES = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\b(?:the|this|that|these|those|each|both|either) (?:(?:above|given|provided|following|preceding|"
        rf"first|second|third|same|two) )*{_TEXT}\b(?! [\"“‘'])",
        rf"\b(?:according to|based on|judging (?:by|from)) (?:the |this |that )?(?:{_TEXT}|{_REPORT})\b"
        r"(?! of\b)",
        rf"\b(?:the|this) {_REPORT} (?:says?|said|tells?|told|mentions?|states?|describes?|names?|gives?)\b",
        rf"\b{_TEXT} (?:number )?[1-4]\b",
        r"\b(?:mentioned|described|stated|given|listed|named|discussed) (?:above|below|earlier|here)\b",
        r"\bthe (?:above|aforementioned|following)\b",
        r"\b(?:according to|based on|from) the (?:(?:above|given|provided|following) )*"
        r"(?:information|details|facts|description)\b",
        r"\b(?:information|details|facts) (?:provided|given|above)\b",
        r"\bas (?:described|stated|mentioned|noted|written|told|given|shown)(?:[,?]| here\b| there\b)",
        r"\b(?:is|are|was|were) (?:mentioned|stated)\b(?!.*\b(?:in|by|on|at|to)\b)",  # by nothing named
    )
]
#: Words that refer to the time when the passage was written. They are matched in lower case, since names may
#: contain them, too (USA Today).
_PRESENT = re.compile(
    r"\b(?:[Cc]urrently|[Nn]owadays|[Pp]resently|today|[Aa]t (?:present|the moment))\b"
    r"|\b(?:[Tt]hese days|[Rr]ight now)\b"
    r"|\b[Aa]s of (?:now|today|this)\b|\b(?:so far|to date|by now|up to now|until now|in recent years)\b"
    r"|\b(?:this|last|next) (?:year|month|week)\b"
    r"|\b(?:is|are) (?:now|still)\b|\b(?:recently|lately)\b(?<!(?:more|most) recently)"
    r"|^Who\w*\b.*\bthe (?:current|incumbent|present)\b"
)
#: "Is it true that ...": this pronoun refers to nothing.
_EXPLETIVE = re.compile(r"\b(is|was) it ((?:\w+|the case) that)\b", re.IGNORECASE)
#: Possessive and reflexive pronouns, which may refer to a noun in the same clause.
_SAME_CLAUSE_PRONOUN = re.compile(
    r"\b(?:his|hers?|its|theirs?|(?:him|her|it)self|themselves)\b", re.IGNORECASE
)
#: Pronouns that refer to a noun in another clause.
_PERSONAL_PRONOUN = re.compile(r"\b(?:he|she|him|it|they|them)\b", re.IGNORECASE)
#: Demonstrative pronouns, which never refer to what is asked for.
_DEMONSTRATIVE = re.compile(r"\b(?:this|these|those)\b(?! (?:year|day|month|century)\b)", re.IGNORECASE)
#: Pronouns that refer to persons only.
_PERSON_PRONOUNS = frozenset("he she him his her hers himself herself".split())
#: A question word with the noun of what is asked for, as in "which old river".
_QUESTION_WORD = re.compile(r"\b(?:which|what) (?:[a-z\-]+ )*?([a-z\-]+)\b", re.IGNORECASE)
_AUXILIARY = frozenset("is was are were be do does did has have had can could will would should may".split())
#: Nouns to which no pronoun refers, since what they mean neither owns nor does anything ("which year").
_MEASURES = frozenset("year date day month time age number amount century decade".split())
#: Nouns to which a personal pronoun such as "he" cannot refer.
_NOT_PERSONS = frozenset(
    "place town city village country state river street language company band film book".split()
)
#: Nouns of persons and things that have names. A question about the past of one must name it.
_NAMED_THINGS = (
    "actor|actress|album|architect|artist|athlete|author|band|book|bridge|building|business|castle|chemist|church|"
    "city|club|college|company|composer|corporation|country|dancer|director|doctor|engineer|enterprise|factory|"
    "farmer|film|firm|founder|group|institution|inventor|island|journalist|king|lake|lawyer|leader|magazine|man|"
    "mathematician|mill|monastery|mountain|movie|museum|musician|newspaper|novel|novelist|organi[sz]ation|painter|"
    "person|philosopher|physicist|pilot|player|poet|politician|president|queen|river|school|scholar|scientist|"
    "sculptor|settlement|ship|show|singer|soldier|song|team|teacher|town|university|village|woman|workshop|writer"
)
_UNNAMED = re.compile(
    rf"\bthe (?:[a-z\-]+ )?(?:{_NAMED_THINGS})\b(?! (?:of|that|who|whose|whom|which|where|in|on|at|from|with|"
    r"for|by|to|called|named|known|and)\b)",
    re.IGNORECASE,
)
_PAST = re.compile(r"\b(?:was|were|did|had|\w+ed)\b")
#: Words that begin another clause.
_NEW_CLAUSE = re.compile(r",|\b(?:when|after|before|while|that|which|who|where|because|and|if|until)\b")
_QUOTATION = r"[\"“][^\"”]+[\"”]"
_QUOTED = re.compile(_QUOTATION)
#: Something that is named: a capitalised word after the first, a quotation, or "the town that ...".
_NAME = re.compile(
    rf"(?<=\S )[A-ZÀ-ÖØ-Þ]\w|{_QUOTATION}"
    r"|\b(?:the|an?) (?:[a-z\-]+ ){1,3}(?:that|which|who|whose|where)\b"
)
#: What is not a word of the question's own sentence: a quotation, something in brackets, an address.
_ASIDE = re.compile(_QUOTATION + r"|[(\[{][^)\]}]+[)\]}]|https?:\S+|\b[\w\-]{3,}(?:\.[\w\-]+)*\.[a-z]{2,}\b")
_WORD = re.compile(r"[^\W_]+")
_POSSESSIVE = re.compile(r"[’']s\b")
#: A number with fewer digits is no name: it may number an item of a list or be an ordinary amount.
_MIN_DIGITS = 3


def asks_several_questions(text: str) -> bool:
    """Return whether a text asks more than one question."""
    return bool(_SECOND_QUESTION.search(_without_quotations(text)))


def refers_to_its_passage(question: str) -> bool:
    """Return whether a question refers to its passage, to the time when the passage was written, or to
    something that the question does not name."""
    question = _EXPLETIVE.sub(r"\1 \2", _without_quotations(question))
    return (
        any(pattern.search(question) for pattern in (*_REFERENCES, _PRESENT))
        or _has_dangling_pronoun(question)
        or _asks_about_unnamed_thing(question)
    )


def unknown_names(question: str, texts: Iterable[str]) -> list[str]:
    """Return the names in a question that occur in none of the texts, in any form.

    The words of names are the capitalised words of a question after the first, its numbers of at least three
    digits, and all words in quotation marks, in brackets and of addresses; words of one or two letters, which
    abbreviate, are left out. Words with the same first four letters are forms of one name (Asia, Asian).
    """
    known = {form for text in texts for word in _WORD.findall(text) for form in _forms(word)}
    return [word for word in _name_words(question) if known.isdisjoint(_forms(word))]


def _name_words(question: str) -> list[str]:
    """Return the words of names in a question, as `unknown_names` defines them."""
    question = _POSSESSIVE.sub("", question)
    asides = [match.span() for match in _ASIDE.finditer(question)]

    def is_name(position: int, match: re.Match[str]) -> bool:
        word, start = match[0], match.start()
        return (
            (word[0].isupper() and position > 0)
            or (word.isdigit() and len(word) >= _MIN_DIGITS)
            or any(begin <= start < end for begin, end in asides)
        )

    words = enumerate(_WORD.finditer(question))
    return [match[0] for position, match in words if len(match[0]) > 2 and is_name(position, match)]


def _forms(word: str) -> set[str]:
    """Return a word without case and accents, and its first four letters unless it is a number."""
    decomposed = unicodedata.normalize("NFKD", word.casefold())
    plain = "".join(character for character in decomposed if not unicodedata.combining(character))
    return {plain} if plain.isdigit() or len(plain) < 4 else {plain, plain[:4] + "…"}


def _without_quotations(question: str) -> str:
    """Replace each quotation by "Title", since pronouns and question words in a title do not count."""
    return _QUOTED.sub('"Title"', question)


def _asks_about_unnamed_thing(question: str) -> bool:
    """Return whether a question asks what happened to "the painter" or "the company" without naming
    anything."""
    is_unnamed = _UNNAMED.search(question) and _PAST.search(question)
    return bool(is_unnamed) and not _NAME.search(question) and not re.search(r"\d", question)


def _has_dangling_pronoun(question: str) -> bool:
    """Return whether a pronoun in the question has nothing before it to which it could refer."""
    for pattern in (_SAME_CLAUSE_PRONOUN, _PERSONAL_PRONOUN, _DEMONSTRATIVE):
        match = pattern.search(question)
        if match is None or _NAME.search(prefix := question[: match.start()]):
            continue
        is_same_clause = pattern is _SAME_CLAUSE_PRONOUN
        if pattern is _DEMONSTRATIVE or not _can_mean_the_answer(match[0].lower(), prefix, is_same_clause):
            return True
    return False


def _can_mean_the_answer(pronoun: str, prefix: str, is_same_clause: bool) -> bool:
    """Return whether a pronoun can refer to what is asked for.

    It can in "Which town lost its gates?", but not in "Which river flows past it?". `prefix` is the question
    before the pronoun; `is_same_clause` says that the pronoun may refer to a noun in its own clause.
    """
    question_word = _QUESTION_WORD.search(prefix) or re.search(r"\b(who)\b", prefix, re.IGNORECASE)
    if question_word is None:
        return False
    noun = question_word[1].lower()
    between = prefix[question_word.end() :]
    is_person = pronoun in _PERSON_PRONOUNS
    if noun in _AUXILIARY or noun in _MEASURES or (is_person and noun in _NOT_PERSONS):
        return False
    return is_same_clause or bool(_NEW_CLAUSE.search(between))
