"""Runs uv with what pip is configured to do on this machine:

    python scripts/uv_like_pip.py UV pip install ...

Where to find packages is a matter of the machine: its mirror, a folder of wheels, its certificate, its
proxy. pip is told in configuration files (of the machine, the user, the environment) and in variables, and
uv reads neither. This script asks pip itself (`pip config list`), sets uv's own variables to match, and
becomes uv. What those variables say already stays. Indexes are merged as pip merges them: the best version
of all counts.

It is run by the environment's Python, whose pip counts. The standard library is all that it needs.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

# A later section of pip's configuration replaces an earlier one, key by key; empty values do not count.
SECTIONS = ("global", "install", ":env:")
# pip's key: uv's variable, and what stands between several values (pip: any white space).
LISTS = {
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "constraint": ("UV_CONSTRAINT", " "),
    "trusted-host": ("UV_INSECURE_HOST", " "),
}
SINGLE = {
    "index-url": "UV_DEFAULT_INDEX",
    "client-cert": "SSL_CLIENT_CERT",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}


def configured(listing: str) -> dict[str, str]:
    """pip's options by name, from the output of `pip config list`: lines of the form section.key='value'."""
    options: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for line in listing.splitlines():
        name, separator, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if not separator or section not in options:
            continue
        try:
            text = str(ast.literal_eval(value)).strip()
        except (ValueError, SyntaxError):
            continue
        if text:
            options[section][key] = text
    return {key: value for section in SECTIONS for key, value in options[section].items()}


def variables(options: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """uv's variables for these options of pip, less those that are set already."""
    result = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    for key, (name, separator) in LISTS.items():
        if key in options:
            result[name] = separator.join(os.path.expanduser(value) for value in options[key].split())
    for key, name in SINGLE.items():
        if key in options:
            result[name] = options[key]
    certificate = (
        options.get("cert") or environment.get("REQUESTS_CA_BUNDLE") or environment.get("CURL_CA_BUNDLE")
    )
    if certificate and not environment.get("SSL_CERT_DIR") and not environment.get("SSL_CERT_FILE"):
        result["SSL_CERT_DIR" if Path(certificate).is_dir() else "SSL_CERT_FILE"] = os.path.expanduser(
            certificate
        )
    if proxy := options.get("proxy"):
        result["HTTP_PROXY"] = result["HTTPS_PROXY"] = proxy if "://" in proxy else f"http://{proxy}"
    return {name: value for name, value in result.items() if not environment.get(name)}


def main(words: list[str]) -> None:
    """Set uv's variables as pip is configured, and run the command of these words in place of this one."""
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], stdout=subprocess.PIPE, text=True, check=False
    ).stdout
    options = configured(listing)
    os.environ.update(variables(options, os.environ))
    if options.get("no-index", "").lower() in ("1", "true", "yes", "on", "y", "t"):
        words = [*words, "--no-index"]
    os.execvp(words[0], words)


if __name__ == "__main__":
    main(sys.argv[1:])
