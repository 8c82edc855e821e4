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
from rag_r1.data.languages import is_in_another_language, language_of
from rag_r1.data.question_wording import asks_several_questions, refers_to_its_passage, unknown_names
from rag_r1.questions.drafts import Draft
from rag_r1.questions.pair_answers import pair_forms, splits
from rag_r1.questions.passages.documents import SourcePassage
from rag_r1.questions.seeds import KindName
from rag_r1.rewards import cover_exact_match, normalise

YES_NO = ("yes", "no")
#: Question marks of several scripts.
_QUESTION_MARKS = ("?", "？", "؟", "\u037e")


def golds_of(
    kind: KindName, answer: str, aliases: Sequence[str], passages: Sequence[SourcePassage]
) -> tuple[str, ...]:
    """Return the accepted forms of an answer to a question of this kind.

    The answer itself comes first, then its other spellings, then the aliases that occur in the passages and
    are longer or shorter forms of the answer. Aliases of the two facts of a `both` question are not accepted.
    """
    if kind == "both":  # an alias could be one of the two facts alone
        return pair_forms(answer, [passage.contents for passage in passages])
    forms = list(answer_forms(answer))
    forms += [alias for alias in aliases if _is_form_of(alias, answer) and _stands_in(passages, [alias])]
    return tuple(dict.fromkeys(form.strip() for form in forms if normalise(form)))


def wrong_form(draft: Draft) -> bool:
    """Refuse a draft that is not exactly one question in the language of its passages.

    A draft is also refused if its answer is not of the form that its kind requires.
    """
    answer = draft.golds[0] if draft.golds else ""
    if not answer or not draft.question.endswith(_QUESTION_MARKS) or asks_several_questions(draft.question):
        return True
    if is_in_another_language(draft.question, [passage.contents for passage in draft.passages]):
        return True
    if draft.seed.planned_answer is None and normalise(answer) in YES_NO:
        return True
    if draft.seed.planned_answer is not None and normalise(answer) != draft.seed.planned_answer:
        return True
    if draft.kind == "both":
        return not splits(answer)
    return draft.kind == "number_date" and not re.search(r"\d", answer)


def too_few_passages(draft: Draft) -> bool:
    """Refuse a draft that needs only one passage, although its kind needs several."""
    return draft.is_multi_hop and len(draft.passages) < 2


def answer_not_in_passages(draft: Draft) -> bool:
    """Refuse a draft whose answer occurs in none of its passages, unless the answer is yes or no.

    The two facts in the answer to a `both` question must occur in two different passages.
    """
    if draft.kind == "both":
        return not draft.facts
    return draft.kind != "yes_no" and not _stands_in(draft.passages, draft.golds)


def answer_in_question(draft: Draft) -> bool:
    """Refuse a draft whose question contains the answer, or a fact of it.

    Comparisons are exempt, since they name both candidates, and so are yes_no questions.
    """
    is_told = any(cover_exact_match(draft.question, forms, ordered=True) for forms in draft.facts)
    return not draft.is_guessable and is_told


def dangling_reference(draft: Draft) -> bool:
    """Refuse a draft that makes no sense without its passage.

    Such a question refers to the passage or to the time when it was written, or it asks about a person or a
    thing without naming it.
    """
    return refers_to_its_passage(draft.question)


def name_not_in_passages(draft: Draft) -> bool:
    """Refuse a draft whose question names something that none of its seed's passages does.

    The teacher has it from elsewhere, or has misread a name or a year. Where all nouns are capitalised, as in
    German, names are not told from other words, and nothing is refused.
    """
    texts = [passage.contents for passage in draft.seed.passages]
    return language_of(texts) != "de" and bool(unknown_names(draft.question, texts))


def name_not_hidden(draft: Draft) -> bool:
    """Refuse a draft that names the first passage's subject, although it was to describe it."""
    title = base_title(draft.seed.passages[0].title)
    must_hide = draft.seed.obscure and bool(normalise(title))
    return must_hide and bool(cover_exact_match(draft.question, [title], ordered=True))


RULES: tuple[Callable[[Draft], bool], ...] = (
    wrong_form,
    too_few_passages,
    dangling_reference,
    answer_not_in_passages,
    answer_in_question,
    name_not_in_passages,
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
    return any(id_ not in question_hits and id_ not in own_hits for id_, own_hits in hits)


def _is_form_of(alias: str, answer: str) -> bool:
    """Whether all words of the alias are in the answer, or the other way round."""
    words = set(normalise(alias).split())
    answer_words = set(normalise(answer).split())
    return bool(words and answer_words) and (words <= answer_words or answer_words <= words)


def _stands_in(passages: Sequence[SourcePassage], answers: Sequence[str]) -> bool:
    """Whether one of the answers occurs in one of the passages."""
    return any(cover_exact_match(passage.contents, answers, ordered=True) for passage in passages)
