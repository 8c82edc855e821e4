"""The formats of the server's log: plain text, or one JSON object per line.

Both formats have the `fields` of a record (`extra={"fields": ...}`), such as those of a request
(request_log.py).
"""

from __future__ import annotations

import json
import logging
from datetime import datetime, timezone


class JsonLinesFormatter(logging.Formatter):
    """Formats a record as one line of JSON with time, level, logger, message and the record's `fields`."""

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
    """Formats a record as a line of text, in which the fields follow the message as key=value."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        pairs = (f"{key}={value!r}" if key == "texts" else f"{key}={value}" for key, value in fields.items())
        return " ".join([super().formatMessage(record), *pairs])


def set_up_logs(log_format: str, level: str) -> None:
    """Send all records from `level` on to standard error, unless the process has set up its log already.

    `log_format` is "json" or "text".
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLinesFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
