"""Service account tokens of a pod: one request each, again when four fifths of their life have passed."""

import asyncio
import datetime
from typing import Any

import msgspec
from tests.fakes.clock import FakeClock

from podwire.embedded.kubelet.objects import PodTokens
from podwire.embedded.kubelet.volumes import TokenRequest
from podwire.model.pod import Pod
from podwire.runtime.clock import rfc3339

POD = msgspec.convert(
    {
        "metadata": {"name": "p", "namespace": "shop", "uid": "u-1"},
        "spec": {"serviceAccountName": "clerk"},
    },
    Pod,
)


class Issuer:
    """The token subresource of the API."""

    def __init__(self, clock: FakeClock) -> None:
        self.config = self
        self.ca = b"PEM"
        self._clock = clock
        self.requests: list[tuple[str, str, str, dict[str, Any]]] = []

    async def create(self, resource: Any, body: dict[str, Any], namespace: str, *, name: str, subresource: str) -> Any:
        self.requests.append((namespace, name, subresource, body["spec"]))
        expires = self._clock.now() + datetime.timedelta(seconds=body["spec"]["expirationSeconds"])
        return {"status": {"token": f"t{len(self.requests)}", "expirationTimestamp": rfc3339(expires)}}


def _volume(*sources: dict[str, Any]) -> dict[str, Any]:
    return {"name": "v", "projected": {"sources": [{"serviceAccountToken": s} for s in sources]}}


def test_token_is_bound_to_its_pod_and_renewed_early() -> None:
    async def body() -> None:
        clock = FakeClock()
        issuer = Issuer(clock)
        tokens = PodTokens(issuer, clock)  # type: ignore[arg-type]
        volumes = [_volume({"path": "token", "expirationSeconds": 1000})]
        wish = TokenRequest("", 1000)
        volume_tokens, renew_at = await tokens.for_volumes(POD, volumes)
        assert (volume_tokens.by_request, volume_tokens.ca, renew_at) == ({wish: "t1"}, b"PEM", 800.0)
        reference = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u-1"}
        assert issuer.requests == [("shop", "clerk", "token", {"expirationSeconds": 1000, "boundObjectRef": reference})]
        await clock.advance(799)
        assert (await tokens.for_volumes(POD, volumes))[0].by_request == {wish: "t1"}
        await clock.advance(2)
        volume_tokens, renew_at = await tokens.for_volumes(POD, volumes)
        assert (volume_tokens.by_request, renew_at) == ({wish: "t2"}, 1601.0)

    asyncio.run(body())


def test_each_audience_and_lifetime_has_its_own_token() -> None:
    async def body() -> None:
        clock = FakeClock()
        issuer = Issuer(clock)
        tokens = PodTokens(issuer, clock)  # type: ignore[arg-type]
        volumes = [_volume({"path": "a", "audience": "vault"}, {"path": "b", "expirationSeconds": 600}, {"path": "c"})]
        volume_tokens, renew_at = await tokens.for_volumes(POD, volumes)
        assert volume_tokens.by_request.keys() == {TokenRequest("vault"), TokenRequest("", 600), TokenRequest()}
        assert sorted(str(spec.get("audiences")) for *_, spec in issuer.requests) == ["None", "None", "['vault']"]
        assert renew_at == 480.0
        assert await tokens.for_volumes(POD, [{"name": "e", "emptyDir": {}}]) == (
            type(volume_tokens)({}, b"PEM"),
            0.0,
        )

    asyncio.run(body())
