"""Repair tickets: one file for each case, and a webhook where the site has one. Owns `<folder>/`: `<id>.json`, and `<id>.sent` once it was taken.

A crash between sending and noting it sends again: the header `Idempotency-Key` is the same.
"""

from __future__ import annotations

import logging
import os
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import msgspec

from aegis_lemon import metrics

log = logging.getLogger(__name__)

TIMEOUT = 10.0


class BadWebhook(ValueError):
    """An address that is none; the message does not show it, it may hold a secret."""


def check_webhook(url: str) -> None:
    if url and not re.match(r"https?://[^\s/]", url):
        raise BadWebhook(f"E130 lemon.webhook ({url.partition(':')[0][:12]}:...): expected an address that begins with https:// or http://")


class Tickets:
    """`open` is repeatable; it blocks, so it runs in a thread."""

    def __init__(self, folder: Path, webhook: str = "") -> None:
        self._folder, self._webhook = folder, webhook

    def path(self, ident: str) -> Path:
        return self._folder / f"{re.sub(r'[^a-z0-9.-]', '_', ident)}.json"

    def open(self, ident: str, content: dict[str, Any]) -> bool:
        """Whether it is written, and sent where that was asked for. Never raises for a disk or a receiver that refuses: said, and tried again."""
        path = self.path(ident)
        if not path.exists():
            try:
                self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                partial = path.with_suffix(".partial")
                partial.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
                os.replace(partial, path)
            except OSError as error:
                metrics.TICKETS.labels("file", "failed").inc()
                log.error("ticket %s could not be written: %s", ident, error)
                return False
            metrics.TICKETS.labels("file", "written").inc()
        return not self._webhook or self._send(ident, path)

    def _send(self, ident: str, path: Path) -> bool:
        sent = path.with_suffix(".sent")
        if sent.exists():
            return True
        headers = {"Content-Type": "application/json", "Idempotency-Key": ident}
        request = urllib.request.Request(self._webhook, path.read_bytes(), headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                answer.read(1)
            sent.touch()
        except (OSError, ValueError) as error:  # HTTPError and URLError are OSErrors
            metrics.TICKETS.labels("webhook", "failed").inc()
            what = f"HTTP {error.code}" if isinstance(error, urllib.error.HTTPError) else type(error).__name__
            log.warning("ticket %s was not taken by the webhook: %s; tried again", ident, what)
            return False
        metrics.TICKETS.labels("webhook", "sent").inc()
        return True
