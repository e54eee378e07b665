"""Messages come out as they went in."""

import msgspec
import pytest

from podwire.proxy.dataplanes.userspace.messages import (
    LENGTH,
    Answer,
    Arrange,
    Arranged,
    Ask,
    Drain,
    RelayPool,
    Renew,
    Renewing,
    Request,
    Retire,
    Retired,
    Show,
    Shown,
    State,
    frame,
    parse_answer,
    parse_request,
)

POOL = RelayPool(
    key="ip default/web/udp cluster",
    protocol="udp",
    address="192.168.99.1",
    endpoints=(("10.0.0.1", 80),),
    serving=frozenset(("10.0.0.1:80", "10.0.0.2:80")),
    affinity_s=600,
    mark=1 << 14,
)


def body(message: Request | Answer) -> bytes:
    whole = frame(message)
    (length,) = LENGTH.unpack_from(whole)
    assert len(whole) == LENGTH.size + length
    return whole[LENGTH.size :]


@pytest.mark.parametrize(
    "request_",
    [Arrange((POOL,)), Retire(("a",), all_others=True), Drain(), Ask(), Show(), Renew(("python", "-m", "x"))],
)
def test_requests(request_: Request) -> None:
    assert parse_request(body(request_)) == request_


@pytest.mark.parametrize(
    "answer",
    [
        Arranged({POOL.key: 40000}, (POOL.key,), {"b": "no port"}),
        Retired(("a",)),
        State(build="1", pid=2, keeper=3, ports={"a": 4}, connections=5, sessions=6),
        Shown((POOL,), {POOL.key: 40000}),
        Renewing(),
    ],
)
def test_answers(answer: Answer) -> None:
    assert parse_answer(body(answer)) == answer


@pytest.mark.parametrize("rubbish", [b"", b"\xff\xff", b"\x81\xa4type\xa5Steal"])
def test_rubbish_is_refused(rubbish: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        parse_request(rubbish)
