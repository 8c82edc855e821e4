"""Checks a draft without a model, by pure functions; the name of each is the reason for which it refuses.

A rule is true if it refuses the draft. It sees the draft alone. They are tried in the order of `RULES`, so a
draft is refused for the first reason that holds. `golds_of` makes the accepted forms of an answer. Of the
aliases that a teacher names only those count that stand in the passages and are a longer or a shorter form of
the answer (a full name, a surname), since any other alias would make another answer right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from rag_r1.data.answer_forms import answer_forms
from rag_r1.data.evidence import base_title
from rag_r1.data.languages import is_in_another_language
from rag_r1.questions.documents import SourcePassage
from rag_r1.questions.drafts import Draft
from rag_r1.rewards import cover_exact_match, normalise

YES_NO = ("yes", "no")
_TEXT = (
    r"(?:passages?|texts?|excerpts?|paragraphs?|contexts?|snippets?|documents?|articles?|sources?|sentences?)"
)
_REFERENCES = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\b(?:the|this|that|these|those|each|both|either) (?:(?:above|given|provided|following|preceding|"
        rf"first|second|third|same|two) )*{_TEXT}\b(?! [\"“‘'])",
        rf"\b(?:according to|based on) (?:the )?{_TEXT}\b",
        rf"\b{_TEXT} (?:number )?[1-4]\b",
        r"\b(?:mentioned|described|stated|given|listed|named|discussed) (?:above|below|earlier|here)\b",
        r"\bthe (?:above|aforementioned|following)\b",
        r"\b(?:according to|based on|from) the (?:(?:above|given|provided|following) )*"
        r"(?:information|details|facts|description)\b",
        r"\b(?:information|details|facts) (?:provided|given|above)\b",
        r"\b(?:is|are|was|were) (?:mentioned|stated)\b(?!.*\b(?:in|by|on|at|to)\b)",  # by nothing named
    )
]
#: A present that only the passage has. In lower case, since names have such words, too (USA Today).
_PRESENT = re.compile(
    r"\b(?:[Cc]urrently|[Nn]owadays|[Pp]resently|today|[Aa]s of now|[Aa]t (?:present|the moment))\b"
    r"|\b(?:is|are) now\b"
    r"|^Who\w*\b.*\bthe (?:current|incumbent)\b"
)
#: Two questions: after a question mark, by two question words, or with a verb before its subject.
_SEVERAL = re.compile(
    r"\?\s+\S*[A-Z¿]"
    r"|\b(?:[Ww]ho|[Ww]hat|[Ww]here|[Ww]hen|[Ww]hy|[Hh]ow) and (?:in |on |by )?"
    r"(?:who|what|which|where|when|why|how)\b"
    r"|\band (?:is|are|was|were|has|have|had|do|does|did|can|could|will|would|should) "
    r"(?:I|you|he|she|it|we|they)\b"
    r"|\band (?:do|does|did) (?:the|an?|[A-Z]\w+)\b"
)
#: "Is it true that": this pronoun means nothing.
_EXPLETIVE = re.compile(r"\b(is|was) it ((?:\w+|the case) that)\b", re.IGNORECASE)
#: Pronouns, by what they can mean: a person or a thing, and whether something in the same clause.
_SELF = re.compile(r"\b(?:his|her|hers|himself|herself|its|itself|their|theirs|themselves)\b", re.IGNORECASE)
_PERSONAL_PRONOUN = re.compile(r"\b(?:he|she|him|it|they|them)\b", re.IGNORECASE)
_THIS = re.compile(r"\b(?:this|these|those)\b(?! (?:year|day|month|century)\b)", re.IGNORECASE)
_OF_PERSONS = frozenset("he she him his her hers himself herself".split())
_QUESTION_WORD = re.compile(r"\b(?:which|what) (?:[a-z\-]+ )*?([a-z\-]+)\b", re.IGNORECASE)
_AUXILIARY = frozenset("is was are were be do does did has have had can could will would should may".split())
#: Nouns of what is asked for that neither have nor do anything.
_MEASURES = frozenset("year date day month time age number amount century decade".split())
#: Further nouns of what is not a person.
_PLACES = frozenset(
    "place town city village country state river street language company band film book".split()
)
#: Nouns of things that have a name, which a question must tell that asks what happened to one.
_NAMED_THINGS = (
    "actor|actress|album|artist|author|band|book|building|castle|church|city|club|company|composer|country|"
    "director|doctor|farmer|film|founder|king|leader|man|movie|musician|novel|novelist|painter|philosopher|"
    "physicist|pilot|player|poet|politician|president|queen|river|school|scientist|singer|song|team|teacher|"
    "town|university|village|woman|writer"
)
_UNNAMED = re.compile(
    rf"\bthe (?:{_NAMED_THINGS})\b(?! (?:of|that|who|whose|whom|which|where|in|on|at|from|with|for|by|to|"
    r"called|named|known|and)\b)",
    re.IGNORECASE,
)
_PAST = re.compile(r"\b(?:was|were|did|had|\w+ed)\b")
#: Question marks of several scripts.
_QUESTION_MARKS = ("?", "？", "؟", "\u037e")
_NEW_CLAUSE = re.compile(r",|\b(?:when|after|before|while|that|which|who|where|because|and|if|until)\b")
_QUOTED = re.compile(r"[\"“][^\"”]+[\"”]")
#: A name that does not begin the question, something in quotation marks, or `the town that ...`.
_NAME = re.compile(
    r"(?<=\S )[A-ZÀ-ÖØ-Þ]\w|[\"“][^\"”]+[\"”]"
    r"|\b(?:the|an?) (?:[a-z\-]+ ){1,3}(?:that|which|who|whose|where)\b"
)


def golds_of(answer: str, aliases: Sequence[str], passages: Sequence[SourcePassage]) -> tuple[str, ...]:
    """The accepted forms of an answer, the answer itself first, then the aliases that are forms of it and
    stand in the passages."""
    forms = list(answer_forms(answer))
    forms += [alias for alias in aliases if _is_form_of(alias, answer) and _stands_in(passages, [alias])]
    return tuple(dict.fromkeys(form.strip() for form in forms if normalise(form)))


def wrong_form(draft: Draft) -> bool:
    """Whether it is not a question, several, or one in another language than its passages, or has an answer
    that its kind cannot have."""
    answer = draft.golds[0] if draft.golds else ""
    if not draft.question.endswith(_QUESTION_MARKS) or not answer:
        return True
    if _SEVERAL.search(_without_quotations(draft.question)):
        return True
    if is_in_another_language(draft.question, [passage.contents for passage in draft.passages]):
        return True
    if draft.seed.planned_answer is None and normalise(answer) in YES_NO:
        return True
    if draft.seed.planned_answer is not None and normalise(answer) != draft.seed.planned_answer:
        return True
    return draft.kind == "number_date" and not re.search(r"\d", answer)


def too_few_passages(draft: Draft) -> bool:
    """Whether it names one passage, and its kind needs several."""
    return draft.is_multi_hop and len(draft.passages) < 2


def answer_not_in_passages(draft: Draft) -> bool:
    """Whether the answer stands in none of the passages. Yes and no need not."""
    return draft.kind != "yes_no" and not _stands_in(draft.passages, draft.golds)


def answer_in_question(draft: Draft) -> bool:
    """Whether the question tells its answer. A comparison names both, and yes or no can stand anywhere."""
    return not draft.is_guessable and bool(cover_exact_match(draft.question, draft.golds, ordered=True))


def dangling_reference(draft: Draft) -> bool:
    """Whether it refers to its passage or the time of that, or to somebody whom it does not name."""
    question = _EXPLETIVE.sub(r"\1 \2", _without_quotations(draft.question))
    return (
        any(pattern.search(question) for pattern in (*_REFERENCES, _PRESENT))
        or _has_dangling_pronoun(question)
        or _asks_about_nobody(question)
    )


def name_not_hidden(draft: Draft) -> bool:
    """Whether it names what it was to describe."""
    title = base_title(draft.seed.passages[0].title)
    hides = draft.seed.obscure and bool(normalise(title))
    return hides and bool(cover_exact_match(draft.question, [title], ordered=True))


RULES: tuple[Callable[[Draft], bool], ...] = (
    wrong_form,
    too_few_passages,
    dangling_reference,
    answer_not_in_passages,
    answer_in_question,
    name_not_hidden,
)


def refused_by_rule(draft: Draft) -> str | None:
    """The reason for which a rule refuses a draft, which is the rule's name; None if none does."""
    return next((rule.__name__ for rule in RULES if rule(draft)), None)


def unreachable(draft: Draft, of_question: Sequence[str], of_titles: Sequence[Sequence[str]]) -> bool:
    """Whether a search does not find its passages. `of_question`: the ids that a search for the question
    finds; `of_titles`: for each of its passages, the ids that a search for its title finds. A search for the
    question must find one, and each other passage must be found by what an agent knows after a step: its
    title."""
    ids = [passage.id for passage in draft.passages]
    pairs = zip(ids, of_titles, strict=True)
    return not set(ids) & set(of_question) or not all(
        name in of_question or name in title_ids for name, title_ids in pairs
    )


def _is_form_of(alias: str, answer: str) -> bool:
    """Whether the words of one are among those of the other."""
    words = set(normalise(alias).split())
    answer_words = set(normalise(answer).split())
    return bool(words and answer_words) and (words <= answer_words or answer_words <= words)


def _stands_in(passages: Sequence[SourcePassage], answers: Sequence[str]) -> bool:
    return any(cover_exact_match(passage.contents, answers, ordered=True) for passage in passages)


def _without_quotations(question: str) -> str:
    """The question with "Title" for each quotation, whose words mean nothing in it."""
    return _QUOTED.sub('"Title"', question)


def _asks_about_nobody(question: str) -> bool:
    """Whether it asks what happened to "the painter" or "the company", and names nothing."""
    is_unnamed = _UNNAMED.search(question) and _PAST.search(question)
    return bool(is_unnamed) and not _NAME.search(question) and not re.search(r"\d", question)


def _has_dangling_pronoun(question: str) -> bool:
    """Whether there is a pronoun before which nothing is named that it could mean."""
    return any(
        (match := pattern.search(question)) is not None
        and not _NAME.search(prefix := question[: match.start()])
        and not (pattern is not _THIS and _can_mean_the_answer(match[0].lower(), prefix, pattern is _SELF))
        for pattern in (_SELF, _PERSONAL_PRONOUN, _THIS)
    )


def _can_mean_the_answer(pronoun: str, prefix: str, is_same_clause: bool) -> bool:
    """Whether a pronoun can mean what is asked for, as in "Which town lost its gates?", and not as in "Which
    river flows past it?"."""
    question_word = _QUESTION_WORD.search(prefix) or re.search(r"\b(who)\b", prefix, re.IGNORECASE)
    if question_word is None:
        return False
    noun = question_word[1].lower()
    between = prefix[question_word.end() :]
    is_person = pronoun in _OF_PERSONS
    if noun in _AUXILIARY or noun in _MEASURES or (is_person and noun in _PLACES):
        return False
    return is_same_clause or bool(_NEW_CLAUSE.search(between))
