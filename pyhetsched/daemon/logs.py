"""Structured logs on standard error: one line an event, key=value, made for the journal."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

_ORDER = ["timestamp", "level", "logger", "event"]


def set_up(level: str) -> None:
    """Send every logger's events of ``level`` and above to standard error."""
    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    shared: list[Any] = [structlog.stdlib.add_log_level, structlog.stdlib.add_logger_name, stamp]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=_ORDER, bool_as_flag=False),
        ],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Alembic tells of every look at the schema.
    logging.getLogger("alembic").setLevel(logging.WARNING)
