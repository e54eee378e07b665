"""The health endpoint, without a socket."""

from collections.abc import Iterator

import pytest

from podwire.observe.health import Health, Sample


def get(health: Health, path: str) -> tuple[str, str]:
    head, _, body = health.answer(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode()).decode().partition("\r\n\r\n")
    return head.split("\r\n")[0].split(" ")[1], body


def test_health_and_readiness() -> None:
    health = Health()
    problem = ""
    health.ready["routing"] = lambda: problem
    assert get(health, "/healthz") == ("200", "ok\n")
    assert get(health, "/readyz") == ("200", "ok\n")
    problem = "no pod CIDR"
    assert get(health, "/healthz")[0] == "200"
    assert get(health, "/readyz?verbose") == ("503", "routing: no pod CIDR\n")


def test_metrics() -> None:
    health = Health()
    health.metrics["ipam"] = lambda: [
        Sample("podwire_ipam_addresses", "Addresses.", 3, {"state": "held"}),
        Sample("podwire_ipam_addresses", "Addresses.", 250, {"state": "free"}),
        Sample("podwire_ipam_early_total", "Cut short.", 1, kind="counter"),
    ]
    status, body = get(health, "/metrics")
    assert status == "200"
    assert 'podwire_ipam_addresses{state="held"} 3.0' in body
    assert "podwire_ipam_early_total 1.0" in body


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /x HTTP/1.1\r\n\r\n", b"404"),
        (b"\r\n\r\n", b"405"),
    ],
)
def test_anything_else_is_refused(head: bytes, status: bytes) -> None:
    assert Health().answer(head).startswith(b"HTTP/1.1 " + status)


def test_pages_of_parts_are_given_the_query_and_named_where_there_is_none() -> None:
    health = Health()

    def log(query: dict[str, list[str]]) -> Iterator[str]:
        first = int(query.get("after", ["0"])[0])
        return iter([f"line {number}" for number in (1, 2, 3) if number > first])

    health.pages["/policy/log"] = log
    assert get(health, "/policy/log") == ("200", "line 1\nline 2\nline 3\n")
    assert get(health, "/policy/log?after=2&last=5") == ("200", "line 3\n")
    assert get(health, "/policy/log?after=x")[0] == "400"
    assert get(health, "/other") == ("404", "/healthz /readyz /metrics /policy/log\n")
    assert get(Health(), "/policy/log")[0] == "404"
