"""The answers of the stand-in server."""

import msgspec
import pytest

from podwire.embedded.standin.answers import (
    HttpAnswer,
    PodIdentity,
    StandinPort,
    answer_http,
    called_urls,
    compose_answer,
    line,
)

SAID = compose_answer(PodIdentity("web-1", "shop", "node-2", "web"), StandinPort(80), "::ffff:10.244.1.5")


def test_an_answer_names_pod_and_client() -> None:
    assert msgspec.json.decode(line(SAID)) == {
        "pod": "web-1", "namespace": "shop", "node": "node-2", "container": "web", "port": 80, "protocol": "TCP",
        "client": "10.244.1.5",
    }  # fmt: skip
    assert line(SAID).count(b"\n") == 1


@pytest.mark.parametrize(
    ("path", "status", "delay_s"),
    [
        ("/", 200, 0.0),
        ("/healthz", 200, 0.0),
        ("/any/path?x=1", 200, 0.0),
        ("/status/503", 503, 0.0),
        ("/status/abc", 200, 0.0),
        ("/status/999", 200, 0.0),
        ("/sleep?ms=250", 200, 0.25),
        ("/sleep?ms=x", 200, 0.0),
        ("/sleep?ms=999999999", 200, 60.0),
    ],
)
def test_paths(path: str, status: int, delay_s: float) -> None:
    assert answer_http(path, SAID) == HttpAnswer(status, line(SAID), delay_s)


@pytest.mark.parametrize(
    ("path", "urls"),
    [
        ("/call?url=http://a&url=http://b:8080/x", ("http://a", "http://b:8080/x")),
        ("/call", ()),
        ("/other?url=http://a", ()),
    ],
)
def test_called_urls(path: str, urls: tuple[str, ...]) -> None:
    assert called_urls(path) == urls
