"""The demo's short prompts, which keep a tiny policy's sequences short."""

from __future__ import annotations

from pathlib import Path

from rag_r1.protocols import Protocol, load_protocol

PROMPT_FILE = Path(__file__).parents[1] / "prompt.txt"
PROMPT = PROMPT_FILE.read_text(encoding="utf-8")


def prompt_file(protocol: str) -> Path:
    """The demo's prompt for a protocol: the file of that protocol if there is one, else the common one."""
    file = PROMPT_FILE.with_name(f"prompt_{protocol}.txt")
    return file if file.exists() else PROMPT_FILE


def demo_protocol(name: str) -> Protocol:
    """A shipped protocol with the demo's short prompt."""
    return load_protocol(name, prompt=prompt_file(name).read_text(encoding="utf-8"))
