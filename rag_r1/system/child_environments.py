"""Chooses the environment variables of child processes, so that secrets do not reach them.

`server_environment` returns the variables that this project's own servers need. `environment_without_secrets`
returns all variables except those with the name of a secret or with a password or a token in an address; it
is for programs such as vLLM, whose variables are not known.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection

#: Variables that this project's servers need: paths, and settings for the use of the machine.
_NEEDED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|TZ|TERM|TMPDIR|TEMP|TMP|HOSTNAME|VIRTUAL_ENV|CI"
    r"|LC_.+|LD_.+|PYTHON.+|CONDA_.+|XDG_.+|SSL_CERT_.+|COV.+|RAG_R1_.+|MALLOC_.+"
    r"|HF_.+|TRANSFORMERS_.+|SENTENCE_TRANSFORMERS_.+|TOKENIZERS_.+|TORCH.+|PYTORCH_.+"
    r"|OMP_.+|GOMP_.+|KMP_.+|MKL_.+|OPENBLAS_.+|BLIS_.+|NUMEXPR_.+|RAYON_.+|ATEN_.+|ONEDNN_.+|DNNL_.+|OV_.+"
    r"|OPENVINO_.+|FAISS_.+|CUDA.+|NVIDIA_.+|NCCL_.+|RAY_.+|JAVA_HOME|JDK_.+|JVM_.+|JAX_.+"
)
#: Names of variables that hold a secret.
_SECRET = re.compile(
    r"(.*_)?(API|ACCESS|PRIVATE)?(KEYS?|TOKENS?|SECRETS?|PASSPHRASE|CREDENTIALS?|AUTH|COOKIE|BEARER|JWT|PAT|DSN)"
    r"(_.*)?|.*(PASSWORD|PASSWD|_PWD|_PASS|CONNECTION_STRING|WEBHOOK_URL)(_.*)?",
    re.IGNORECASE,
)
#: An address with a password, such as that of a database, or a web address with a token in place of a user.
_SECRET_IN_ADDRESS = re.compile(r"://[^/\s@]*:[^/\s@]+@|https?://[^/\s@]+@", re.IGNORECASE)
#: Variables in which such an address is needed: those of proxies and of the Hub's mirror.
_NEEDED_ADDRESS = re.compile(r".*_proxy|HF_ENDPOINT", re.IGNORECASE)


def server_environment(*secrets: str) -> dict[str, str]:
    """Return the environment variables that a server of this project needs. `secrets` are the names of secret
    variables that it needs, too."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in secrets or (_NEEDED.fullmatch(name) and not _is_secret(name, value))
    }


def environment_without_secrets(keep: Collection[str], hidden: Collection[str] = ()) -> dict[str, str]:
    """Return the environment of this process without its secrets: the variables with the name of a secret, or
    with a password or a token in an address, unless they are in `keep`. The variables in `hidden` are left
    out as well."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in hidden and (name in keep or not _is_secret(name, value))
    }


def _is_secret(name: str, value: str) -> bool:
    """Return whether a variable has the name of a secret, or a value with a password or a token in an
    address, which is allowed in the variables of _NEEDED_ADDRESS."""
    is_in_address = _SECRET_IN_ADDRESS.search(value) and not _NEEDED_ADDRESS.fullmatch(name)
    return bool(_SECRET.fullmatch(name) or is_in_address)
