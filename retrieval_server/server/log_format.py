"""The formats of the server's log: text, or one JSON object a line.

Each request is one record of the logger `retrieval_server.requests`: id, route, status, milliseconds,
number of queries, index. The text of queries is private and left out, unless the operator asks for it.
Headers, and with them the token, are never logged.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from datetime import datetime, timezone

request_log = logging.getLogger("retrieval_server.requests")
#: The key of the ASGI scope under which a request has its RequestNote.
NOTE = "retrieval_server.note"


@dataclass
class RequestNote:
    """The facts that are logged of a request beside route, status and time; the search service sets them."""

    id: str
    queries: int = 0
    index: str | None = None
    texts: tuple[str, ...] = ()


class JsonLinesFormatter(logging.Formatter):
    """Formats a record as one line of JSON: time, level, logger, message, and the record's `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        } | getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """Formats a record as a line of text: the fields follow the message, as key=value."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        pairs = (f"{key}={value!r}" if key == "texts" else f"{key}={value}" for key, value in fields.items())
        return " ".join([super().formatMessage(record), *pairs])


def set_up_logs(log_format: str, level: str) -> None:
    """Send all records of `level` and above to standard error; `log_format` is "json" or "text"."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLinesFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
