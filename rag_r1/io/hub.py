"""Asks whether the Hugging Face Hub can be reached, before a package tries it for a minute."""

from __future__ import annotations

#: Seconds in which the Hub must answer.
_TIMEOUT_S = 5.0


def hub_answers() -> bool:
    """Returns whether the Hub can be reached; asks it by one request, unless HF_HUB_OFFLINE is set.
    transformers repeats its own requests for a minute before it looks into the cache."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=_TIMEOUT_S)
    except Exception:  # of httpx or of requests, by its version
        return False
    return True
