"""Structured logs: one line per event, ``time level component message key=value ...`` on standard error.

A value with a space, quote or equals sign is printed as JSON text. Levels are those of :mod:`logging`, which carries
the lines, so warnings of libraries have the same form.
"""

import json
import logging
import sys
import time
from typing import Any, Literal

Level = Literal["debug", "info", "warning", "error"]
"""The lowest level that is logged."""


class LineFormatter(logging.Formatter):
    """One line per record; fields come from ``extra={"fields": {...}}``."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record, followed by the traceback of its exception."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        head = f"{stamp}.{int(record.msecs):03d}Z {record.levelname.lower():7} {record.name} {record.getMessage()}"
        fields: dict[str, Any] = getattr(record, "fields", {})
        line = head + "".join(f" {key}={_text(value)}" for key, value in fields.items())
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _text(value: object) -> str:
    text = str(value)
    return json.dumps(text) if not text or any(c in text for c in ' "=\n') else text


class Log:
    """The log of one component; every method takes fields as keywords."""

    def __init__(self, component: str) -> None:
        self._logger = logging.getLogger(component)

    def debug(self, message: str, **fields: object) -> None:
        """Logs a detail for developers."""
        self._logger.debug(message, extra={"fields": fields})

    def info(self, message: str, **fields: object) -> None:
        """Logs an event of normal operation."""
        self._logger.info(message, extra={"fields": fields})

    def warning(self, message: str, **fields: object) -> None:
        """Logs a problem that an operator may want to fix."""
        self._logger.warning(message, extra={"fields": fields})

    def error(self, message: str, *, failure: BaseException | None = None, **fields: object) -> None:
        """Logs a failure; ``failure`` adds its traceback."""
        self._logger.error(message, exc_info=failure, extra={"fields": fields})


def configure(level: Level = "info") -> None:
    """Sends every log to standard error at ``level``; to be called once, by a composition root."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
