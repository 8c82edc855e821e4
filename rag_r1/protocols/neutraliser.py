"""Neutralises data, so that no text in it can act as a tag or as a control token.

Documents and questions come from anywhere, and a string of a tokenizer's added vocabulary becomes one token
wherever it occurs, even in the middle of a document: it could end a turn, or begin the result of a tool.
Three kinds of strings are therefore changed: these control tokens (`control_tokens`), the tags of the
protocol, and the marks with which published chat templates separate turns. The latter are changed even if the
tokenizer does not have them as tokens, since some templates write them as text.

`<search>` becomes `[search]`, and `<|im_end|>` becomes `[|im_end|]`. A token without angle brackets is split
in two. All other text is unchanged, byte for byte, unless only normalisation (NFKC) reveals a token, such as
one in full-width letters: then the whole text is normalised. The time is linear in the length of the text,
however large the vocabulary is (Gemma has six thousand added tokens), because the tokens form one regular
expression in which common prefixes are shared.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_BRACKETS = str.maketrans("<>", "[]")
#: The two halves of `<|...|>`. They are matched separately, since matching pairs would take quadratic time on
#: a text of opening halves. DeepSeek uses the full-width bar.
_HALVES = "<[|｜]>?|[|｜]>"
#: Tags of published chat templates (Hermes and Qwen, Gemma, Llama 2) and of reasoning models.
_TAGS = [
    f"<{slash}{name}>"
    for name in ("tool_call", "tool_response", "think", "thinking", "thought", "reasoning")
    for slash in ("", "/")
] + ["<start_of_turn>", "<end_of_turn>", "<<SYS>>", "<</SYS>>"]
#: Marks without angle brackets, of Llama 2 and Mistral.
_MARKS = [
    f"[{slash}{name}]"
    for name in ("INST", "AVAILABLE_TOOLS", "TOOL_CALLS", "TOOL_RESULTS", "SYSTEM_PROMPT")
    for slash in ("", "/")
]
#: Ordinary text, which may also have been added to a vocabulary: years, names, `Doc 1:`.
_ORDINARY = re.compile(r"(?:[^\W_]|[\s.,:;!?'\"()/&%+*=-])*")


def control_tokens(tokenizer: Any) -> set[str]:
    """Return the strings that a Hugging Face tokenizer turns into one token wherever they occur. These are
    its special tokens, and the other strings that were added to its vocabulary, such as Qwen's `<tool_call>`;
    ordinary words are left out."""
    added = tokenizer.added_tokens_decoder.values()
    marked_special = (str(token) for token in added if getattr(token, "special", False))
    special = {*tokenizer.all_special_tokens, *marked_special}
    candidates = {*tokenizer.get_added_vocab(), *map(str, added)}
    return special | {token for token in candidates if not is_ordinary(token)}


def is_ordinary(text: str) -> bool:
    """Return whether a text consists only of words, numbers and common punctuation."""
    return _ORDINARY.fullmatch(text) is not None


def replace_question(messages: Sequence[Any], question: str, harmless: str) -> list[Any]:
    """Return chat messages in which the last occurrence of the question is replaced by `harmless`. It is the
    last one because a prompt has the question after its instructions."""
    if question == harmless:
        return list(messages)
    changed = list(messages)
    for position in reversed(range(len(changed))):
        message = changed[position]
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, str) and question in content:
            before, _, after = content.rpartition(question)
            changed[position] = {**message, "content": before + harmless + after}
            break
    return changed


class Neutraliser:
    """Neutralises tags and tokens in any letter case. Tags are also found with spaces inside, since a model
    may read `< /Search >` as the real tag."""

    def __init__(self, tags: Iterable[str], tokens: Iterable[str]):
        tags = list(tags)
        bracketed = [tag for tag in [*tags, *_TAGS] if set(tag) & set("<>")]
        patterns = [r"\s*".join(map(re.escape, re.findall(r"\w+|[^\w\s]", tag))) for tag in bracketed]
        halves = re.compile(_HALVES)
        strings = {token.casefold() if token.isascii() else token for token in [*tags, *tokens, *_MARKS]}
        strings = {token for token in strings - set(bracketed) if token and not halves.search(token)}
        alternatives = [*patterns, _trie_pattern(sorted(strings)), _HALVES]
        self._forbidden = re.compile("|".join(alternatives), re.IGNORECASE)

    def __call__(self, text: str) -> str:
        """Return the text with all tags and tokens neutralised."""
        # A pass can produce a new token: `<pad>` becomes `[pad]`, which may be a special token as well. The
        # loop terminates, because each pass removes angle brackets or moves the letters of a token apart.
        while True:
            while (changed := self._forbidden.sub(_defuse, text)) != text:
                text = changed
            # Some tokenizers normalise full-width letters before they look for their tokens.
            normalised = text if text.isascii() else unicodedata.normalize("NFKC", text)
            if normalised == text or not self._forbidden.search(normalised):
                return text
            text = normalised


def _defuse(match: re.Match[str]) -> str:
    """Return the match with square brackets in place of angle brackets. Without any, it is split in two; a
    single character becomes a space."""
    changed = match[0].translate(_BRACKETS)
    if changed != match[0]:
        return changed
    return f"{match[0][0]} {match[0][1:]}" if len(match[0]) > 1 else " "


def _trie_pattern(words: Sequence[str], position: int = 0) -> str:
    """Return a pattern that matches the longest possible one of the sorted `words`, or never matches if there
    are none.

    The pattern is a trie, so the time for a match does not grow with the number of words. The first
    `position` characters of all words are equal and left out.
    """
    if not words:
        return "(?!)"
    end = len(words[0])
    while words[0][:end] != words[-1][:end]:
        end -= 1
    is_word = len(words[0]) == end
    groups: dict[str, list[str]] = {}
    for word in words[is_word:]:
        groups.setdefault(word[end], []).append(word)
    prefix = re.escape(words[0][position:end])
    if not groups:
        return prefix
    endings = "|".join(_trie_pattern(group, end) for group in groups.values())
    return f"{prefix}(?:{endings}){'?' if is_word else ''}"
