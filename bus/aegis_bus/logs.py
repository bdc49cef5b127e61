"""Structured logs of a process: one JSON object per line on stderr, of structlog and of the standard library alike; seeds and tokens are masked."""

from __future__ import annotations

import logging
import re
import sys
from typing import Any

import structlog

_SECRETS = re.compile(r"\bS[UAONC][A-Z2-7]{40,}\b|\beyJ[\w-]{16,}\.[\w-]{16,}\.[\w-]{16,}\b")


def mask(text: str) -> str:
    """`text` without nkey seeds and JWTs."""
    return _SECRETS.sub("[secret]", text)


class _Masked(logging.StreamHandler[Any]):
    def format(self, record: logging.LogRecord) -> str:
        return mask(super().format(record))


def configure(service: str, level: str = "info", replica: str = "") -> None:
    """Set up logging of this process, once. `service` and `replica` are on every line."""

    def who(_: Any, __: str, event: dict[str, Any]) -> dict[str, Any]:
        event["service"] = service
        if replica:
            event["replica"] = replica
        return event

    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        who,
        structlog.processors.format_exc_info,
    ]
    handler = _Masked(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, structlog.processors.JSONRenderer(default=str)],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("nats").setLevel(logging.CRITICAL)  # what it has to say reaches us by its callbacks
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
