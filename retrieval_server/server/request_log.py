"""What is logged about a request.

Each request is one record of the logger `retrieval_server.requests`, with id, route, status, milliseconds,
number of queries and index. The text of queries is private and left out unless the operator asks for it.
Headers, which include the token, are never logged.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

_logger = logging.getLogger("retrieval_server.requests")
#: The key of a request's RequestNote in the ASGI scope.
NOTE = "retrieval_server.note"


@dataclass
class RequestNote:
    """What is logged about a request besides route, status and time.

    `SearchService.search` sets the fields below the id; for other requests they keep their defaults.
    """

    id: str
    #: The number of queries.
    queries: int = 0
    #: The name of the index that was searched.
    index: str | None = None
    #: The text of the queries, if the operator wants it logged.
    texts: tuple[str, ...] = ()


def log_request(note: RequestNote, route: str, status: int, seconds: float) -> None:
    """Log a request, if the log level includes such lines."""
    if _logger.isEnabledFor(logging.INFO):
        fields = {"id": note.id, "route": route, "status": status, "ms": round(seconds * 1000, 1)}
        fields |= {"queries": note.queries, "index": note.index}
        if note.texts:
            fields["texts"] = list(note.texts)
        _logger.info("request", extra={"fields": fields})
