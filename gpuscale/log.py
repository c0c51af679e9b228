"""Structured logging: one `configure()` for both daemons, one event per line, on standard error."""

import logging
import sys
from typing import Any, Literal, cast

import structlog

LogFormat = Literal["json", "console"]
LogLevel = Literal["debug", "info", "warning", "error"]


def configure(level: LogLevel = "info", fmt: LogFormat = "json") -> None:
    """Send structlog and the standard library's loggers to standard error in one format.

    Standard output stays free for what a command prints as its answer.
    """
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if fmt == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Libraries speak at warning and above: aiohttp's access log at every scrape is noise.
    root.setLevel(logging.WARNING)


def get(name: str) -> structlog.typing.FilteringBoundLogger:
    """The logger of a room; events are `noun verb` in past tense with their data as keywords."""
    return cast("structlog.typing.FilteringBoundLogger", structlog.get_logger(room=name))
