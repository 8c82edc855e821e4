"""Checks whether the Hugging Face Hub can be reached.

transformers repeats failing requests for a minute before it looks into the cache. Callers check first, and
restrict transformers to the cache if the Hub does not answer.
"""

from __future__ import annotations

#: Seconds in which the Hub must answer.
_TIMEOUT_S = 5.0


def hub_answers() -> bool:
    """Return whether the Hub answers one request; False without a request if HF_HUB_OFFLINE is set."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=_TIMEOUT_S)
    except Exception:  # raised by httpx or requests, depending on the version of huggingface_hub
        return False
    return True
