"""Checks a draft by rules that need no model.

Each rule is a pure function that gets the draft and returns True to refuse it. The name of the function is
the reason that is recorded. Rules are tried in the order of `RULES`, so a draft is refused for the first one
that applies.

`golds_of` makes the accepted forms of an answer. It accepts an alias of the teacher only if the alias occurs
in the passages and is a longer or shorter form of the answer (a full name, a surname), since any other alias
could make a wrong answer right.
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
#: References to a passage that whoever reads only the question does not see.
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
#: Words that refer to the time when the passage was written. They are matched in lower case, since names may
#: contain them, too (USA Today).
_PRESENT = re.compile(
    r"\b(?:[Cc]urrently|[Nn]owadays|[Pp]resently|today|[Aa]s of now|[Aa]t (?:present|the moment))\b"
    r"|\b(?:is|are) now\b"
    r"|^Who\w*\b.*\bthe (?:current|incumbent)\b"
)
#: Signs of a second question: text after a question mark, a second question word, or an inverted clause.
_SEVERAL = re.compile(
    r"\?\s+\S*[A-Z¿]"
    r"|\b(?:[Ww]ho|[Ww]hat|[Ww]here|[Ww]hen|[Ww]hy|[Hh]ow) and (?:in |on |by )?"
    r"(?:who|what|which|where|when|why|how)\b"
    r"|\band (?:is|are|was|were|has|have|had|do|does|did|can|could|will|would|should) "
    r"(?:I|you|he|she|it|we|they)\b"
    r"|\band (?:do|does|did) (?:the|an?|[A-Z]\w+)\b"
)
#: "Is it true that ...": this pronoun refers to nothing.
_EXPLETIVE = re.compile(r"\b(is|was) it ((?:\w+|the case) that)\b", re.IGNORECASE)
#: Possessive and reflexive pronouns, which may refer to a noun in the same clause.
_POSSESSIVE = re.compile(r"\b(?:his|hers?|its|theirs?|(?:him|her|it)self|themselves)\b", re.IGNORECASE)
#: Pronouns that refer to a noun in another clause.
_PERSONAL_PRONOUN = re.compile(r"\b(?:he|she|him|it|they|them)\b", re.IGNORECASE)
#: Pronouns that never refer to what is asked for.
_THIS = re.compile(r"\b(?:this|these|those)\b(?! (?:year|day|month|century)\b)", re.IGNORECASE)
#: Pronouns that refer to persons only.
_OF_PERSONS = frozenset("he she him his her hers himself herself".split())
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
#: Words that begin another clause.
_NEW_CLAUSE = re.compile(r",|\b(?:when|after|before|while|that|which|who|where|because|and|if|until)\b")
_QUOTED = re.compile(r"[\"“][^\"”]+[\"”]")
#: Something that is named: a capitalised word after the first, a quotation, or "the town that ...".
_NAME = re.compile(
    r"(?<=\S )[A-ZÀ-ÖØ-Þ]\w|[\"“][^\"”]+[\"”]"
    r"|\b(?:the|an?) (?:[a-z\-]+ ){1,3}(?:that|which|who|whose|where)\b"
)


def golds_of(answer: str, aliases: Sequence[str], passages: Sequence[SourcePassage]) -> tuple[str, ...]:
    """Return the accepted forms of an answer.

    The answer itself comes first, then its other spellings, then the aliases that occur in the passages and
    are longer or shorter forms of the answer.
    """
    forms = list(answer_forms(answer))
    forms += [alias for alias in aliases if _is_form_of(alias, answer) and _stands_in(passages, [alias])]
    return tuple(dict.fromkeys(form.strip() for form in forms if normalise(form)))


def wrong_form(draft: Draft) -> bool:
    """Refuse a draft that is not exactly one question in the language of its passages.

    A draft is also refused if its answer is not of the form that its kind requires.
    """
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
    """Refuse a draft that needs only one passage, although its kind needs several."""
    return draft.is_multi_hop and len(draft.passages) < 2


def answer_not_in_passages(draft: Draft) -> bool:
    """Refuse a draft whose answer occurs in none of its passages, unless the answer is yes or no."""
    return draft.kind != "yes_no" and not _stands_in(draft.passages, draft.golds)


def answer_in_question(draft: Draft) -> bool:
    """Refuse a draft whose question contains the answer.

    Comparisons are exempt, since they name both candidates, and so are yes_no questions.
    """
    return not draft.is_guessable and bool(cover_exact_match(draft.question, draft.golds, ordered=True))


def dangling_reference(draft: Draft) -> bool:
    """Refuse a draft that makes no sense without its passage.

    Such a question refers to the passage or to the time when it was written, or it asks about somebody or
    something without naming them.
    """
    question = _EXPLETIVE.sub(r"\1 \2", _without_quotations(draft.question))
    return (
        any(pattern.search(question) for pattern in (*_REFERENCES, _PRESENT))
        or _has_dangling_pronoun(question)
        or _asks_about_nobody(question)
    )


def name_not_hidden(draft: Draft) -> bool:
    """Refuse a draft that names the first passage's subject, although it was to describe it."""
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
    """Return the name of the first rule that refuses a draft, which is the reason; None if no rule does."""
    return next((rule.__name__ for rule in RULES if rule(draft)), None)


def unreachable(draft: Draft, question_hits: Sequence[str], title_hits: Sequence[Sequence[str]]) -> bool:
    """Whether an agent cannot find the passages of a draft by searching.

    `question_hits` are the ids of the passages that a search for the question finds; `title_hits` are, for
    each of the draft's passages, the ids that a search for its title finds. The question must lead to at
    least one passage. The others must be found by the question or by their titles, which the agent learns
    from the passages before.
    """
    ids = [passage.id for passage in draft.passages]
    if not set(ids) & set(question_hits):
        return True
    hits = zip(ids, title_hits, strict=True)
    return any(name not in question_hits and name not in own_hits for name, own_hits in hits)


def _is_form_of(alias: str, answer: str) -> bool:
    """Whether all words of the alias are in the answer, or the other way round."""
    words = set(normalise(alias).split())
    answer_words = set(normalise(answer).split())
    return bool(words and answer_words) and (words <= answer_words or answer_words <= words)


def _stands_in(passages: Sequence[SourcePassage], answers: Sequence[str]) -> bool:
    """Whether one of the answers occurs in one of the passages."""
    return any(cover_exact_match(passage.contents, answers, ordered=True) for passage in passages)


def _without_quotations(question: str) -> str:
    """Replace each quotation by "Title", since pronouns and question words in a title do not count."""
    return _QUOTED.sub('"Title"', question)


def _asks_about_nobody(question: str) -> bool:
    """Whether a question asks what happened to "the painter" or "the company" without naming anything."""
    is_unnamed = _UNNAMED.search(question) and _PAST.search(question)
    return bool(is_unnamed) and not _NAME.search(question) and not re.search(r"\d", question)


def _has_dangling_pronoun(question: str) -> bool:
    """Whether a pronoun in the question has nothing before it to which it could refer."""
    for pattern in (_POSSESSIVE, _PERSONAL_PRONOUN, _THIS):
        match = pattern.search(question)
        if match is None or _NAME.search(prefix := question[: match.start()]):
            continue
        is_same_clause = pattern is _POSSESSIVE
        if pattern is _THIS or not _can_mean_the_answer(match[0].lower(), prefix, is_same_clause):
            return True
    return False


def _can_mean_the_answer(pronoun: str, prefix: str, is_same_clause: bool) -> bool:
    """Whether a pronoun can refer to what is asked for.

    It can in "Which town lost its gates?", but not in "Which river flows past it?". `prefix` is the question
    before the pronoun; `is_same_clause` says that the pronoun may refer to a noun in its own clause.
    """
    question_word = _QUESTION_WORD.search(prefix) or re.search(r"\b(who)\b", prefix, re.IGNORECASE)
    if question_word is None:
        return False
    noun = question_word[1].lower()
    between = prefix[question_word.end() :]
    is_person = pronoun in _OF_PERSONS
    if noun in _AUXILIARY or noun in _MEASURES or (is_person and noun in _NOT_PERSONS):
        return False
    return is_same_clause or bool(_NEW_CLAUSE.search(between))
