"""Finds texts that are plainly in another language than others, by their script and a few common words.

No language is identified for its own sake: where these words do not decide, nothing is said. So only what
nobody would take for the same language is found, in a few languages of the Latin script and in any script.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

#: Letters of a script that a text in this script has at least: a Greek letter in a formula does not count.
_MIN_LETTERS = 3
#: Language -> words without which hardly a sentence is written, and words one of which a question has.
_WORDS = {
    "en": (
        "the of and to by was were is are with from for on at",
        "who whom whose which what where when why how is are was were do does did has have had can",
    ),
    "de": (
        "der die das und von dem den des ein eine ist wurde mit auf für",
        "wer wen wem wessen welche welcher welches welchem welchen was wo wann wie warum woher ist sind war "
        "waren wurde wurden hat haben hatte",
    ),
    "fr": (
        "le la les des du et est une dans par pour sur avec était",
        "qui que quoi quel quelle quels quelles où quand comment combien pourquoi est était",
    ),
    "es": (
        "el la los las del y es una por con para fue en",
        "quién quiénes qué cuál cuáles dónde cuándo cómo cuánto cuántos cuántas es fue era",
    ),
    "it": (
        "il lo la gli le della di e è una con per nel fu",
        "chi che cosa quale quali dove quando come quanto quanti quante perché è fu era",
    ),
    "pt": (
        "o os as do da dos e é uma em com por para foi",
        "quem que qual quais onde quando como quanto quantos quantas é foi era",
    ),
    "nl": (
        "de het een en van is was met voor op werd",
        "wie wat welke welk waar wanneer hoe hoeveel waarom is was werd werden heeft",
    ),
}
_COMMON = {language: frozenset(common.split()) for language, (common, _) in _WORDS.items()}
_ASKING = {language: frozenset(asking.split()) for language, (_, asking) in _WORDS.items()}


def is_in_another_language(question: str, texts: Sequence[str]) -> bool:
    """Whether a question is plainly in another language than the texts."""
    scripts = _scripts(question)
    text_scripts = set().union(*map(_scripts, texts))
    if any(count >= _MIN_LETTERS and script not in text_scripts for script, count in scripts.items()):
        return True
    language = _language(texts)
    words = set(_split_words(question))
    if language is None or words & _ASKING[language]:
        return False
    return any(words & asking for asking in _ASKING.values())


def _language(texts: Sequence[str]) -> str | None:
    """The language of texts; None if no language has at least two of the common words, and twice as many as
    every other one."""
    counts = Counter(word for text in texts for word in _split_words(text))
    sums = {language: sum(counts[word] for word in common) for language, common in _COMMON.items()}
    (best, count), (_, second) = Counter(sums).most_common(2)
    return best if count >= 2 and count >= 2 * second else None


def _split_words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _scripts(text: str) -> Counter[str]:
    """Script -> number of its letters in a text, by the first word of their names in Unicode."""
    return Counter(unicodedata.name(sign, "").split(" ")[0] for sign in text if sign.isalpha())
