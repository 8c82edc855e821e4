"""Renders a model's chat template, which turns messages into a prompt, within limits on time and memory.

A chat template is a program that comes with the model, and could run forever or fill the memory. So a sandbox
worker renders it (rag_r1/sandbox/chat_renderer.py), which takes a fraction of a millisecond and gives the
same text as transformers. A template that has exceeded the limits several times is not rendered again.
Tokenizers that have code of their own instead of a template render chats themselves, without these limits.

Code that loads a tokenizer tries it out with the other functions of this module: it calls
`refuse_endless_files` before loading, and `refuse_empty_tokenizer` and `refuse_endless_template` after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rag_r1.io.errors import DataError
from rag_r1.sandbox.job_paths import path_argument
from rag_r1.sandbox.worker_pool import JobError, JobLimits, LimitError, WorkerPool

#: The messages of a chat, or the schemas of tools.
Messages = Sequence[Mapping[str, Any]]

#: Limits on rendering one chat. An ordinary template takes milliseconds for a megabyte of messages.
LIMITS = JobLimits(cpu_s=5.0, memory_bytes=1 << 30, answer_bytes=64 << 20)
#: Limits on loading a tokenizer and encoding a line. A tokenizer of 300,000 tokens takes half a second.
_TRIAL = JobLimits(cpu_s=20.0, memory_bytes=4 << 30)
#: Largest file of a tokenizer that is loaded.
_MAX_FILE_BYTES = 256 << 20
#: Files from which the usual tokenizers are loaded, besides `tokenizer.json`.
_FILES = (
    "config.json tokenizer_config.json special_tokens_map.json added_tokens.json vocab.json vocab.txt "
    "merges.txt tokenizer.model spiece.model sentencepiece.bpe.model chat_template.jinja chat_template.json"
).split()
#: How often the limits may end a template before it counts as broken. One time is not enough, since the
#: operating system occasionally kills a worker, too.
MAX_ENDINGS = 3
#: Arguments of `apply_chat_template` that say how the text is encoded, and are no variables of the template.
_ENCODING_ARGUMENTS = ("max_length", "padding", "return_tensors", "truncation")
#: Other such arguments. If they are set, transformers refuses every chat of this module without rendering it.
_REFUSED_ARGUMENTS = ("continue_final_message", "return_assistant_tokens_mask")
#: Errors that Jinja2 raises when it compiles a template.
_SYNTAX_ERRORS = ("TemplateSyntaxError", "TemplateAssertionError")

_workers = WorkerPool()
#: Template -> how often the limits have ended it.
_endings: Counter[str] = Counter()


class ChatTemplate:
    """The chat template of a Hugging Face tokenizer. `arguments` are further arguments of
    `apply_chat_template`, and apply to every chat."""

    def __init__(self, tokenizer: Any, **arguments: Any):
        self._tokenizer, self._arguments = tokenizer, arguments
        method = getattr(type(tokenizer), "apply_chat_template", None)
        is_inherited = getattr(method, "__module__", "") == "transformers.tokenization_utils_base"
        variables = dict(arguments)
        # A list, since each of them must be removed.
        is_refused = any([variables.pop(name, False) for name in _REFUSED_ARGUMENTS])
        self._uses_worker = is_inherited and not is_refused
        encoding = {name: variables.pop(name) for name in _ENCODING_ARGUMENTS if name in variables}
        # `truncation` has the default of `apply_chat_template`, which is not that of the tokenizer.
        self._encoding = {"truncation": False, **encoding, **(variables.pop("tokenizer_kwargs", None) or {})}
        self._variables = variables

    def text(self, messages: Messages, tools: Messages | None = None) -> str:
        """Return the text of a prompt, up to the beginning of the model's next turn.

        Raises DataError if the template cannot be rendered, ValueError if it refuses the chat or has an error
        with it, TypeError if it has values that JSON cannot represent, OSError or RuntimeError if no worker
        can be started, and whatever a tokenizer raises that renders chats itself.
        """
        if not self._uses_worker:
            return self._tokenizer.apply_chat_template(
                list(messages), tools=tools, tokenize=False, add_generation_prompt=True, **self._arguments
            )
        variables = dict(self._variables)
        template = self._tokenizer.get_chat_template(variables.pop("chat_template", None), tools)
        values = {
            **_as_texts(self._tokenizer.special_tokens_map),
            "documents": None,
            "tools": None if tools is None else [dict(tool) for tool in tools],
            **variables,
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": True,
        }
        return _render(template, values)

    def ids(self, messages: Messages, tools: Messages | None = None) -> list[int]:
        """Return the token ids of a prompt. Raises the same errors as `text`."""
        if not self._uses_worker:
            return self._tokenizer.apply_chat_template(
                list(messages), tools=tools, add_generation_prompt=True, return_dict=False, **self._arguments
            )
        text = self.text(messages, tools)
        return self._tokenizer(text, add_special_tokens=False, **self._encoding)["input_ids"]


def refuse_empty_tokenizer(tokenizer: Any) -> None:
    """Raise ValueError for a tokenizer without tokens, which transformers returns for a folder without
    tokenizer files."""
    if not tokenizer("Who?")["input_ids"]:
        raise ValueError("it has no tokens: its tokenizer.json, or what takes its place, is missing")


def refuse_endless_template(tokenizer: Any) -> None:
    """Raise DataError if the tokenizer's template cannot render a question within its limits, or is not
    valid. A template that refuses the question passes, as does a tokenizer without one. Also raises
    TypeError, OSError and RuntimeError as `ChatTemplate.text` does."""
    if not getattr(tokenizer, "chat_template", None):
        return
    try:
        ChatTemplate(tokenizer).text([{"role": "user", "content": "Who?"}])
    except DataError:
        raise
    except ValueError:  # a template may refuse such a chat
        pass


def refuse_endless_files(folder: str | Path) -> None:
    """Check a tokenizer's files in a folder, and try out its `tokenizer.json` in a worker, before this
    process loads them. Does nothing if there is no such folder. Raises ValueError with the file's name, to
    which the caller adds the remedy; OSError if a file cannot be looked at; and OSError or RuntimeError if no
    worker can be started."""
    folder = Path(folder)
    fast_file = folder / "tokenizer.json"
    for path in (fast_file, *(folder / name for name in _FILES)):
        with suppress(FileNotFoundError, NotADirectoryError):
            if not path.is_file() and path.exists():
                raise ValueError(f"{path} is not a file")
            if path.stat().st_size > _MAX_FILE_BYTES:
                raise ValueError(f"{path} has more than {_MAX_FILE_BYTES >> 20} MiB")
    if fast_file.is_file():
        try:
            _workers.call("rag_r1.sandbox.tokenizer_trial:try_out", [path_argument(fast_file)], _TRIAL)
        except LimitError as error:
            raise ValueError(f"{fast_file} cannot be loaded: {error}") from None
        except JobError:
            pass  # transformers reports what is wrong, or loads the tokenizer in another way


def _render(template: str, values: dict[str, Any]) -> str:
    """Return the text rendered by a worker. Raises DataError if the template is not valid or exceeds its
    limits, and ValueError for every error while it is rendered, an undefined variable included."""
    if _endings[template] >= MAX_ENDINGS:
        raise DataError("the chat template was ended by its limits before: use another model's")
    try:
        return _workers.call("rag_r1.sandbox.chat_renderer:render", [template, values], LIMITS)
    except LimitError as error:
        _endings[template] += 1
        raise DataError(f"the chat template cannot be rendered: {error}") from None
    except JobError as error:
        if error.kind in _SYNTAX_ERRORS:
            raise DataError(f"the chat template is not valid Jinja: {error}") from None
        raise ValueError(str(error)) from None  # usually the template refuses the chat


def _as_texts(tokens: Mapping[str, Any]) -> dict[str, Any]:
    """Return special tokens as texts; some versions of transformers represent them as objects."""
    return {
        name: list(map(str, value)) if isinstance(value, list | tuple) else str(value)
        for name, value in tokens.items()
    }
