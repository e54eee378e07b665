"""When a request is sent again because the API server asked for it. Pure.

An API server with priority and fairness answers 429 when the queue of a client's requests is full, and says in
``Retry-After`` when to come back: it has not begun the request, so a write may be sent again, too. Of other answers
with ``Retry-After`` (an API server that starts or ends: 503) only reads are. An eviction is answered with 429 while a
PodDisruptionBudget forbids it, which its caller wants to know. Source: client-go ``rest/with_retry.go``.
"""

from collections.abc import Mapping

RETRIES = 10
LONGEST_S = 10.0
"""The longest pause that an API server may ask for."""


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The seconds in ``Retry-After``; None without it, and for a date, which needs the server's clock."""
    text = headers.get("retry-after", "").strip()
    return min(float(text), LONGEST_S) if text.isascii() and text.isdigit() else None


def pause_s(status: int, headers: Mapping[str, str], path: str, *, is_read: bool) -> float | None:
    """How long to wait before the request is sent again; None: it is not."""
    if status != 429 and not (is_read and status >= 500):
        return None
    if path.endswith("/eviction"):
        return None
    return retry_after_s(headers)
