"""Which answers lead to another try, and after which pause."""

import pytest

from podwire.kube.patience import LONGEST_S, pause_s, retry_after_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1", 1.0), ("0", 0.0), ("3600", LONGEST_S), ("", None), ("-1", None), ("Wed, 21 Oct 2026 07:28:00 GMT", None)],
)
def test_pause_is_the_seconds_of_the_header(text: str, seconds: float | None) -> None:
    assert retry_after_s({"retry-after": text}) == seconds


@pytest.mark.parametrize(
    ("status", "is_read", "path", "again"),
    [
        (429, True, "/api/v1/pods", True),
        (429, False, "/api/v1/namespaces/a/pods", True),
        (429, False, "/api/v1/namespaces/a/pods/b/eviction", False),
        (503, True, "/api/v1/pods", True),
        (503, False, "/api/v1/namespaces/a/pods", False),
        (409, True, "/api/v1/pods", False),
        (200, True, "/api/v1/pods", False),
    ],
)
def test_only_requests_that_were_not_begun_are_sent_again(status: int, is_read: bool, path: str, again: bool) -> None:
    assert (pause_s(status, {"retry-after": "1"}, path, is_read=is_read) is not None) == again
    assert pause_s(status, {}, path, is_read=is_read) is None
