"""Reads the demo's prompts, which are short so that the sequences of a tiny policy are short."""

from __future__ import annotations

from pathlib import Path

from rag_r1.protocols import Protocol, load_protocol

#: The prompt of all protocols that have no file of their own.
PROMPT_FILE = Path(__file__).parents[1] / "prompt.txt"
PROMPT = PROMPT_FILE.read_text(encoding="utf-8")


def prompt_file(protocol: str) -> Path:
    """Return the file with the demo's prompt for a protocol, which may be the path of a YAML file."""
    file = PROMPT_FILE.parent / f"prompt_{protocol}.txt"
    return file if file.exists() else PROMPT_FILE


def demo_protocol(name: str) -> Protocol:
    """Load a protocol, by its name or the path of its YAML file, with the demo's short prompt. Raises
    ProtocolError if there is no such protocol, or if it does not take the prompt."""
    return load_protocol(name, prompt=prompt_file(name).read_text(encoding="utf-8"))
