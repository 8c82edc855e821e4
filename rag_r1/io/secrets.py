"""Reads secrets from environment variables, and removes others from what is stored with a run.

Secrets are keys, tokens, and credentials in addresses. They belong in environment variables, whose names may
be stored. A stored value counts as secret if its key has the name of a secret. Of an address, the parts that
may contain a password or a token are removed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from rag_r1.io.bounded_yaml import YamlError, load_yaml

#: Names of keys whose values are secrets, in files written by this project.
_SECRET = re.compile(
    r"(^|[_-])(api_?key|key|token|secret|password|passwd|authorization|credentials?|cookie)$", re.IGNORECASE
)
#: Names of settings whose values are secrets. A bare `key` is not among them, since the names of ordinary
#: settings end in it, too, such as veRL's data.prompt_key.
_SECRET_SETTING = re.compile(
    r"(^|[._-])((api|access|auth|private|secret)_?-?key|token|secret|password|passwd|authorization|"
    r"credentials?|cookie)$",
    re.IGNORECASE,
)
_CREDENTIALS = re.compile(r"(?<=://)[^/\s]*@")  # a password may contain @
_WEB = re.compile("https?://", re.IGNORECASE)
_REMOVED = "(removed)"
_FLAG = re.compile(r"(?:^|\s)--?([\w-]+)")


def read_secret(variable: str | None) -> str | None:
    """Return the key or token in an environment variable, which must not be logged; None if it is empty or
    not set, or if `variable` is None. Raises ValueError, whose message does not show the value, if it has
    characters that a header or a key cannot have; HTTP clients would show such a header in their messages."""
    value = os.environ.get(variable, "").strip() if variable else ""
    if not (value.isascii() and value.isprintable()) or " " in value:
        raise ValueError(f"${variable} has characters that a key cannot have: set it to the key alone")
    return value or None


def public_address(url: str) -> str:
    """Return an address without its user, password, query and fragment; `(removed)` if the text cannot be
    parsed as an address."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return _REMOVED
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def without_secrets(value: Any) -> Any:
    """Return a copy of a JSON value without secrets. The values of keys that name a secret are replaced, and
    addresses lose their credentials, queries and fragments."""
    if isinstance(value, Mapping):
        return {
            str(key): _REMOVED if item is not None and _SECRET.search(str(key)) else without_secrets(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [without_secrets(item) for item in value]
    if not isinstance(value, str):
        return value
    return public_address(value) if _WEB.match(value) else _CREDENTIALS.sub("", value)


def holds_secret(text: str) -> bool:
    """Return whether the text of a setting contains a secret.

    This is the case for `key=value` whose key names a secret, for YAML or JSON with such a key, for another
    program's flag with such a name, and for an address with credentials.
    """
    key, equals, value = text.partition("=")
    names = [key, *_FLAG.findall(text)] if equals else _FLAG.findall(text)
    if any(_SECRET_SETTING.search(name) for name in names):
        return True
    try:
        data = load_yaml(value if equals else text)
    except YamlError:
        data = value if equals else text
    return without_secrets([data]) != _plain([data])  # in a list NaN, which is not secret, equals itself


def _plain(value: Any) -> Any:
    """Return a copy of a value in the form in which `without_secrets` returns it: keys become texts, and
    tuples lists."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
