"""An API whose objects a test changes, and objects that it lists."""

import asyncio
import base64
import datetime
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from tests.fakes import scripted_http as http

Json = dict[str, Any]


class ChangingApi:
    """An API that lists objects by plural and sends what is written later to watches."""

    def __init__(self, listed: dict[str, list[Json]]) -> None:
        self._listed = listed
        self._watches: dict[str, list[asyncio.Queue[Json | None]]] = {}
        self._written: dict[str, list[Json]] = {}
        self._version = 10
        self._events: list[Json] = []

    def write(self, plural: str, value: Json) -> None:
        """Changes or makes an object."""
        self._version += 1
        value = value | {"metadata": value["metadata"] | {"resourceVersion": str(self._version)}}
        self._written.setdefault(plural, []).append(value)
        for queue in self._watches.get(plural, []):
            queue.put_nowait(value)

    @property
    def events(self) -> list[Json]:
        """The Events that were recorded, in order."""
        return self._events

    def close(self) -> None:
        """Ends all watches."""
        for queue in (queue for queues in self._watches.values() for queue in queues):
            queue.put_nowait(None)

    async def answer(self, received: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        """Answers one request."""
        path, _, query = received.target.partition("?")
        plural = path.rpartition("/")[2]
        if received.method == "POST" and plural == "events":
            self._events.append(received.json)
            return http.answer(writer, received.json, 201)
        if "watch=true" not in query:
            return http.answer(writer, {"metadata": {"resourceVersion": "2"}, "items": self._listed.get(plural, [])})
        queue: asyncio.Queue[Json | None] = asyncio.Queue()
        for earlier in self._written.get(plural, []):
            queue.put_nowait(earlier)
        self._watches.setdefault(plural, []).append(queue)
        http.open_stream(writer)
        while (value := await queue.get()) is not None:
            http.chunk(writer, {"type": "MODIFIED", "object": value})
            await writer.drain()
        return False


def meta(name: str, namespace: str = "shop", **more: Any) -> Json:
    """The metadata of an object."""
    return {"name": name, "namespace": namespace, "resourceVersion": "1", "uid": name, "generation": 1, **more}


def tls_secret(name: str, pair: tuple[str, str]) -> Json:
    """A Secret with a certificate chain and its key."""
    chain, key = (base64.b64encode(text.encode()).decode() for text in pair)
    return {"metadata": meta(name), "type": "kubernetes.io/tls", "data": {"tls.crt": chain, "tls.key": key}}


def weak_certificate(host: str) -> tuple[str, str]:
    """A certificate with a key of 1024 bits."""
    key = rsa.generate_private_key(65537, 1024)  # noqa: S505
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), text.decode()
