"""Neutralises text that is data, so that it cannot act as a tag or as a control token.

Documents and questions come from anywhere. A string in a tokenizer's added vocabulary becomes one token
wherever it occurs, even in the middle of a document: the end of a turn, the beginning of a tool's result. So
all such strings (`control_tokens`) are changed, and so are the protocol's own tags and the marks by which
published chat templates separate turns, whether or not the tokenizer in use has them as tokens: some
templates write them as text. `<search>` becomes `[search]`, `<|im_end|>` becomes `[|im_end|]`; a token
without angle brackets is split in two. All other text is unchanged, byte for byte.

The time is linear in the length of the text for any vocabulary (Gemma has six thousand added tokens): the
tokens form one regular expression in which common prefixes are shared.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_BRACKETS = str.maketrans("<>", "[]")
#: Halves of `<|...|>`, each on its own: matching pairs takes quadratic time on a text of opening halves. The
#: full-width bar is DeepSeek's.
_HALVES = "<[|｜]>?|[|｜]>"
#: Tags of published chat templates and reasoning models: Hermes and Qwen, Gemma, Llama 2, reasoning.
_TAGS = [
    f"<{slash}{name}>"
    for name in ("tool_call", "tool_response", "think", "thinking", "thought", "reasoning")
    for slash in ("", "/")
] + ["<start_of_turn>", "<end_of_turn>", "<<SYS>>", "<</SYS>>"]
#: Those without angle brackets: Llama 2 and Mistral.
_MARKS = [
    f"[{slash}{name}]"
    for name in ("INST", "AVAILABLE_TOOLS", "TOOL_CALLS", "TOOL_RESULTS", "SYSTEM_PROMPT")
    for slash in ("", "/")
]
#: Ordinary words that may have been added to a vocabulary: years, names, `Doc 1:`.
_ORDINARY = re.compile(r"(?:[^\W_]|[\s.,:;!?'\"()/&%+*=-])*")


def control_tokens(tokenizer: Any) -> set[str]:
    """Returns the strings that a Hugging Face tokenizer turns into one token wherever they occur: its special
    tokens, and other strings that were added to its vocabulary, such as Qwen's `<tool_call>`, except ordinary
    words."""
    added = tokenizer.added_tokens_decoder.values()
    marked_special = (str(token) for token in added if getattr(token, "special", False))
    special = {*tokenizer.all_special_tokens, *marked_special}
    candidates = {*tokenizer.get_added_vocab(), *map(str, added)}
    return special | {token for token in candidates if not is_ordinary(token)}


def is_ordinary(text: str) -> bool:
    """Whether a text is nothing but words, numbers and common punctuation."""
    return _ORDINARY.fullmatch(text) is not None


def replace_question(messages: Sequence[Any], question: str, harmless: str) -> list[Any]:
    """Returns chat messages with the last occurrence of the question replaced by `harmless`: a prompt has the
    question after its instructions. The messages are unchanged if the two are equal."""
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
    """Neutralises `tags` (also with spaces inside: a model may read `< /Search >` as the real tag) and exact
    `tokens`, both in any letter case."""

    def __init__(self, tags: Iterable[str], tokens: Iterable[str]):
        tags = list(tags)
        bracketed = [tag for tag in [*tags, *_TAGS] if set(tag) & set("<>")]
        patterns = [r"\s*".join(map(re.escape, re.findall(r"\w+|[^\w\s]", tag))) for tag in bracketed]
        halves = re.compile(_HALVES)
        strings = {token.casefold() if token.isascii() else token for token in [*tags, *tokens, *_MARKS]}
        strings = {token for token in strings - set(bracketed) if token and not halves.search(token)}
        self._forbidden = re.compile(
            "|".join([*patterns, _trie_pattern(sorted(strings)), _HALVES]), re.IGNORECASE
        )

    def __call__(self, text: str) -> str:
        """Returns `text` with all tags and tokens neutralised."""
        # Repeated until nothing is left: `<pad>` becomes `[pad]`, which may itself be a special token. It
        # terminates, because each pass removes angle brackets or moves the letters of a token further apart.
        while True:
            while (changed := self._forbidden.sub(_defuse, text)) != text:
                text = changed
            # Some tokenizers look for their tokens after normalising full-width letters.
            normalised = text if text.isascii() else unicodedata.normalize("NFKC", text)
            if normalised == text or not self._forbidden.search(normalised):
                return text
            text = normalised


def _defuse(match: re.Match[str]) -> str:
    """The match with square brackets for angle ones. A token without any is split in two, a single character
    becomes a space."""
    changed = match[0].translate(_BRACKETS)
    if changed != match[0]:
        return changed
    return f"{match[0][0]} {match[0][1:]}" if len(match[0]) > 1 else " "


def _trie_pattern(words: Sequence[str], position: int = 0) -> str:
    """A pattern for the longest of the sorted `words` that matches, whose first `position` characters are
    equal and left out. It is a trie, so that the time does not grow with the number of words. Without words
    it never matches."""
    if not words:
        return "(?!)"
    end = len(words[0])
    last_word = words[-1]
    while words[0][:end] != last_word[:end]:
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
