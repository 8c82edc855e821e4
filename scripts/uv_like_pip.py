"""Runs uv with the configuration that pip has on this machine.

    python scripts/uv_like_pip.py UV pip install ...

A machine may have its own mirror, folder of wheels, certificate or proxy. pip reads these from configuration
files (of the machine, the user, the environment) and from variables, but uv reads neither. This script gets
the configuration from pip itself (`pip config list`), sets uv's variables to match, and replaces its process
by uv. Variables of uv that are already set are not changed. Indexes are merged as pip merges them: the best
version in any of them is installed.

It is run by the Python of the environment, whose pip is used, and needs only the standard library.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

#: Sections of pip's configuration; a later one replaces an earlier one, key by key, except by empty values.
SECTIONS = ("global", "install", ":env:")
#: pip's key -> uv's variable, and the separator of its values (pip separates them by any white space).
LISTS = {
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "constraint": ("UV_CONSTRAINT", " "),
    "trusted-host": ("UV_INSECURE_HOST", " "),
}
#: pip's key -> uv's variable, for keys with a single value.
SINGLE = {
    "index-url": "UV_DEFAULT_INDEX",
    "client-cert": "SSL_CLIENT_CERT",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}


def configured(listing: str) -> dict[str, str]:
    """Return pip's options by name from the output of `pip config list`, lines like section.key='value'."""
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
    """Return uv's variables for these options of pip, without those that are already set."""
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
        certificate = os.path.expanduser(certificate)
        result["SSL_CERT_DIR" if Path(certificate).is_dir() else "SSL_CERT_FILE"] = certificate
    if proxy := options.get("proxy"):
        result["HTTP_PROXY"] = result["HTTPS_PROXY"] = proxy if "://" in proxy else f"http://{proxy}"
    return {name: value for name, value in result.items() if not environment.get(name)}


def main(command: list[str]) -> None:
    """Set uv's variables to pip's configuration, and replace this process by the command."""
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], stdout=subprocess.PIPE, text=True, check=False
    ).stdout
    options = configured(listing)
    os.environ.update(variables(options, os.environ))
    if options.get("no-index", "").lower() in ("1", "true", "yes", "on", "y", "t"):
        command = [*command, "--no-index"]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
