"""Removes secrets from what is stored with a run: keys, tokens, and the credentials of addresses.

A value counts as secret by the name of its key, or as the part of an address that may hold a password or a
token. So secrets belong in environment variables, whose names may be stored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from rag_r1.io.bounded_yaml import YamlError, load_yaml

#: A key whose value is a secret, in files of ours.
_SECRET = re.compile(
    r"(^|[_-])(api_?key|key|token|secret|password|passwd|authorization|credentials?|cookie)$", re.IGNORECASE
)
#: A setting whose value is a secret: ordinary settings also end in `key`, such as veRL's data.prompt_key.
_SECRET_SETTING = re.compile(
    r"(^|[._-])((api|access|auth|private|secret)_?-?key|token|secret|password|passwd|authorization|"
    r"credentials?|cookie)$",
    re.IGNORECASE,
)
_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]*@")
_REMOVED = "(removed)"
_FLAG = re.compile(r"(?:^|\s)--?([\w-]+)")


def public_address(url: str) -> str:
    """Returns an address without user, password, parameters and fragment; `(removed)` for a text that cannot
    be read as an address."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return _REMOVED
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def without_secrets(value: Any) -> Any:
    """Returns a copy of JSON values without the values of keys that name a secret, and without credentials
    and parameters of addresses."""
    if isinstance(value, Mapping):
        return {
            str(key): _REMOVED if item is not None and _SECRET.search(str(key)) else without_secrets(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [without_secrets(item) for item in value]
    if not isinstance(value, str):
        return value
    return public_address(value) if value.startswith(("http://", "https://")) else _CREDENTIALS.sub("", value)


def holds_secret(text: str) -> bool:
    """Returns whether a setting that is a text holds a secret: `key=value` with the key of a secret, YAML or
    JSON with such a key, flags of another program with the name of a secret, or an address with
    credentials."""
    key, equals, value = text.partition("=")
    if any(_SECRET_SETTING.search(name) for name in (*([key] if equals else ()), *_FLAG.findall(text))):
        return True
    try:
        data = load_yaml(value if equals else text)
    except YamlError:
        data = value if equals else text
    return without_secrets(data) != _plain(data)


def _plain(value: Any) -> Any:
    """Returns a copy of the value as `without_secrets` returns it when there is no secret in it: texts as
    keys, lists for tuples."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
