"""The gRPC health check: client and server agree, byte by byte and in pieces."""

import pytest

from podwire.embedded.standin.grpc import PREFACE, Frames, HealthAnswer, HealthServer, check_request


@pytest.mark.parametrize("step", [1, 7, 4096])
@pytest.mark.parametrize("service", ["", "shop.Cart"])
def test_client_and_server_agree(step: int, service: str) -> None:
    to_client: list[bytes] = []
    server = HealthServer(to_client.append)
    answer = HealthAnswer()
    data = check_request("10.0.0.1:8080", service)
    assert data.startswith(PREFACE)
    for start in range(0, len(data), step):
        server.feed(data[start : start + step])
    sent = b"".join(to_client)
    for start in range(0, len(sent), step):
        answer.feed(sent[start : start + step])
    assert answer.done
    assert answer.serving
    assert answer.reply  # The server's settings are acknowledged.


def test_a_reset_is_not_serving() -> None:
    answer = HealthAnswer()
    answer.feed(b"\0\0\4\3\0\0\0\0\1\0\0\0\7")
    assert answer.done
    assert not answer.serving


def test_a_ping_is_answered() -> None:
    sent: list[bytes] = []
    server = HealthServer(sent.append)
    server.feed(PREFACE + b"\0\0\x08\6\0\0\0\0\0" + b"12345678")
    assert Frames().feed(sent[-1]) == [(6, 1, 0, b"12345678")]
