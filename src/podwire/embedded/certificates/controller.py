"""Signs approved certificate requests with the cluster's authority, and removes old requests.

Guarantees: 1. a request is signed only when it has the condition Approved and neither Denied nor Failed; 2. a request
that its signer may not sign gets the condition Failed with the reason; 3. signed requests are removed an hour after
they were made, denied ones too, and pending ones after a day. Cost: one write per request. Source:
``k8s.io/kubernetes/pkg/controller/certificates/{signer,cleaner}``.
"""

import base64
from pathlib import Path

from podwire.embedded.certificates import signing
from podwire.errors import ConfigError, NotFound
from podwire.kube.controller import Environment
from podwire.kube.resources import CERTIFICATESIGNINGREQUESTS, Json
from podwire.runtime.clock import parse_rfc3339, rfc3339
from podwire.runtime.supervise import Supervisor

_DONE_S = 3600.0
_PENDING_S = 86400.0


class CertificateController:
    """Signs with the authority in ``ca_file`` and ``ca_key_file``; without a key it signs nothing."""

    def __init__(self, environment: Environment, ca_file: str, ca_key_file: str) -> None:
        self._client = environment.client
        self._clock = environment.clock
        self._authority = (Path(ca_file).read_bytes(), Path(ca_key_file).read_bytes()) if ca_key_file else None
        self._requests = environment.of(CERTIFICATESIGNINGREQUESTS)
        self._loop = environment.loop("certificatesigningrequest", self._reconcile)
        self._requests.subscribe(lambda key, _old, _new: self._loop.touch(key))

    def start(self, supervisor: Supervisor) -> None:
        """Starts the loop."""
        self._loop.start(supervisor, workers=1)

    async def _reconcile(self, name: str) -> None:
        request = self._requests.get(name)
        if request is None:
            return
        left_s = self._left_s(request)
        if left_s <= 0:
            try:
                await self._client.delete(CERTIFICATESIGNINGREQUESTS, name, uid=request["metadata"]["uid"])
            except NotFound:
                return
            return
        self._loop.queue.add_after(name, left_s)
        if self._authority is not None and _wants_certificate(request):
            await self._sign(request, self._authority)

    def _left_s(self, request: Json) -> float:
        """How long the request stays, in seconds."""
        age_s = (self._clock.now() - parse_rfc3339(request["metadata"]["creationTimestamp"])).total_seconds()
        return (_DONE_S if _conditions(request) else _PENDING_S) - age_s

    async def _sign(self, request: Json, authority: tuple[bytes, bytes]) -> None:
        spec = request["spec"]
        usages = tuple(spec.get("usages") or ())
        try:
            text = base64.b64decode(spec["request"])
            problem = signing.refusal(spec["signerName"], signing.parse_request(text), usages)
        except ConfigError as failure:
            problem = str(failure)
        status: Json = dict(request.get("status") or {})
        if problem:
            condition = {
                "type": "Failed", "status": "True", "reason": "SignerValidationFailure", "message": problem,
                "lastUpdateTime": rfc3339(self._clock.now()),
            }  # fmt: skip
            status["conditions"] = [*(status.get("conditions") or ()), condition]
        else:
            certificate = signing.sign(authority, text, usages, spec.get("expirationSeconds"), self._clock.now())
            status["certificate"] = base64.b64encode(certificate).decode()
        meta = {"uid": request["metadata"]["uid"], "resourceVersion": request["metadata"]["resourceVersion"]}
        body = {"metadata": meta, "status": status}
        await self._client.patch(CERTIFICATESIGNINGREQUESTS, request["metadata"]["name"], body, subresource="status")


def _conditions(request: Json) -> set[str]:
    conditions = (request.get("status") or {}).get("conditions") or ()
    return {item["type"] for item in conditions if item.get("status") == "True"}


def _wants_certificate(request: Json) -> bool:
    if request["spec"].get("signerName") not in signing.SIGNERS or (request.get("status") or {}).get("certificate"):
        return False
    conditions = _conditions(request)
    return "Approved" in conditions and conditions.isdisjoint(("Denied", "Failed"))
