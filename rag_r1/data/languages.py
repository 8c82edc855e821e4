"""Detects questions that are clearly in another language than given texts.

The detection uses the scripts of the letters and a few very common words of seven languages. It does not
identify languages in general: if the script and these words do not decide, the language counts as the same.
So it finds only obvious differences, between any two scripts and between these languages.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

#: A text counts as written in a script if it has this many letters of it: a Greek letter in a formula does
#: not make a text Greek.
_MIN_LETTERS = 3
#: Maps the code of each language that `language_of` knows to its name.
LANGUAGES = {
    "en": "English",
    "de": "German",
    "fr": "French",
    "es": "Spanish",
    "it": "Italian",
    "pt": "Portuguese",
    "nl": "Dutch",
}
#: Maps each language to its most common words, and to its question words and verbs; nearly every question has
#: one of the latter.
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
    """Return whether a question is clearly in another language than the texts, by its script or its words;
    `texts` has at least one."""
    scripts = _scripts(question)
    text_scripts = set().union(*map(_scripts, texts))
    if any(count >= _MIN_LETTERS and script not in text_scripts for script, count in scripts.items()):
        return True
    language = language_of(texts)
    words = set(_split_words(question))
    if language is None or words & _ASKING[language]:
        return False
    # Without a question word of that language, it must have a common one, and no question word of another.
    return not words & _COMMON[language] or any(words & asking for asking in _ASKING.values())


def language_of(texts: Sequence[str]) -> str | None:
    """Return the language of the texts, which must have at least two of its common words and twice as many as
    of any other language; None if there is no such language."""
    counts = Counter(word for text in texts for word in _split_words(text))
    sums = {language: sum(counts[word] for word in common) for language, common in _COMMON.items()}
    (best, count), (_, second) = Counter(sums).most_common(2)
    return best if count >= 2 and count >= 2 * second else None


def _split_words(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return re.findall(r"\w+", text.lower())


def _scripts(text: str) -> Counter[str]:
    """Count the letters of each script in a text. The script of a letter is the first word of its Unicode
    name. Katakana counts as hiragana, since Japanese has both, and a full-width letter as an ordinary one."""
    names = (unicodedata.name(c, "") for c in unicodedata.normalize("NFKC", text) if c.isalpha())
    return Counter(re.split("[ -]", name.replace("KATAKANA", "HIRAGANA"))[0] for name in names)
