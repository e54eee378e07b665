"""API objects for containers: ConfigMaps, Secrets and service account tokens.

The kubelet watches ConfigMaps, or Secrets, as soon as a pod refers to one; a pod that needs an object waits for the
first list. Each pod has its own tokens. A token is requested when the pod's first container starts and again when four
fifths of its lifetime have passed, so a pod costs one request an hour.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from podwire.embedded.kubelet.volumes import TokenRequest, VolumeTokens, config_map_data, secret_data, token_requests
from podwire.kube.client import Client
from podwire.kube.informer import Informer
from podwire.kube.resources import CONFIGMAPS, SECRETS, SERVICEACCOUNTS, Json, Resource
from podwire.model.pod import Container, Pod
from podwire.runtime.clock import Clock, parse_rfc3339
from podwire.runtime.supervise import Supervisor

_RENEW_SHARE = 0.8
_RENEW_MIN_S = 5.0
_SYNC_S = 10.0


_CONFIG_MAP = ("configMap", "configMapRef", "configMapKeyRef")
_SECRET = ("secret", "secretRef", "secretKeyRef")


def needs(pod: Pod) -> tuple[bool, bool]:
    """Whether a pod refers to a ConfigMap, and whether it refers to a Secret.

    The ConfigMap of the cluster's root certificate does not count, since the kubelet has the certificate.
    """
    containers: Sequence[Container] = pod.spec.containers + pod.spec.init_containers + pod.spec.ephemeral_containers
    references: list[Any] = list(pod.spec.volumes)
    for container in containers:
        references += [*container.env_from, *(v.value_from for v in container.env if v.value_from)]
    fields = {kind for value in references for kind in _kinds(value)}
    return not fields.isdisjoint(_CONFIG_MAP), not fields.isdisjoint(_SECRET)


def _kinds(value: Any) -> Iterable[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not (isinstance(inner, Mapping) and inner.get("name") == "kube-root-ca.crt"):
                yield key
            yield from _kinds(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _kinds(inner)


class ConfigObjects:
    """The ConfigMaps and Secrets that the kubelet knows."""

    def __init__(self, client: Client, supervisor: Supervisor) -> None:
        self._client = client
        self._supervisor = supervisor
        self.changed: Callable[[str], None] = lambda namespace: None
        """Called with the namespace of a ConfigMap or Secret that changed."""
        self._informers: dict[str, Informer[Json]] = {}
        self._watches: list[asyncio.Task[None]] = []

    async def ready_for(self, pod: Pod) -> None:
        """Returns when the first lists of all kinds that ``pod`` refers to have arrived.

        Raises: TimeoutError when the API server does not answer within 10 seconds.
        """
        config_maps, secrets = needs(pod)
        resources = [CONFIGMAPS] * config_maps + [SECRETS] * secrets
        for resource in resources:
            informer = self._informer(resource)
            if not informer.synced.is_set():
                async with asyncio.timeout(_SYNC_S):
                    await informer.synced.wait()

    def close(self) -> None:
        """Ends the watches."""
        for watch in self._watches:
            watch.cancel()

    def _informer(self, resource: Resource[Json]) -> Informer[Json]:
        informer = self._informers.get(resource.plural)
        if informer is None:
            informer = self._informers[resource.plural] = Informer(self._client, resource)
            informer.subscribe(lambda key, old, new: self.changed(key.partition("/")[0]))
            self._watches.append(self._supervisor.start(f"watch {resource.plural}", informer.run))
        return informer

    def config_map(self, namespace: str, name: str) -> Mapping[str, bytes] | None:
        """The values of a ConfigMap by key; None when the ConfigMap does not exist."""
        document = self._informer(CONFIGMAPS).get(f"{namespace}/{name}")
        return None if document is None else config_map_data(document)

    def secret(self, namespace: str, name: str) -> Mapping[str, bytes] | None:
        """The values of a Secret by key; None when the Secret does not exist."""
        document = self._informer(SECRETS).get(f"{namespace}/{name}")
        return None if document is None else secret_data(document)


class PodTokens:
    """The service account tokens of one pod. A token is bound to the pod: it is not valid after the pod is deleted."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._held: dict[TokenRequest, tuple[str, float]] = {}

    async def for_volumes(self, pod: Pod, volumes: Iterable[Mapping[str, Any]]) -> tuple[VolumeTokens, float]:
        """The tokens that volumes project, and the monotonic time at which the first must be renewed (0: no tokens).

        Raises: ApiError, ApiUnreachable.
        """
        requests = {request for volume in volumes for request in token_requests(volume)}
        for request in requests:
            token = self._held.get(request)
            if token is None or token[1] <= self._clock.monotonic():
                self._held[request] = await self._request(pod, request)
        tokens = {request: self._held[request][0] for request in requests}
        return VolumeTokens(tokens, self._client.config.ca), min(
            (self._held[request][1] for request in requests), default=0.0
        )

    async def _request(self, pod: Pod, request: TokenRequest) -> tuple[str, float]:
        meta = pod.metadata
        spec: Json = {
            "expirationSeconds": request.life_s,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid},
        }
        if request.audience:
            spec["audiences"] = [request.audience]
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        account = pod.spec.service_account_name or "default"
        answer = await self._client.create(SERVICEACCOUNTS, body, meta.namespace, name=account, subresource="token")
        status = answer["status"]
        left_s = (parse_rfc3339(status["expirationTimestamp"]) - self._clock.now()).total_seconds()
        return status["token"], self._clock.monotonic() + max(_RENEW_MIN_S, left_s * _RENEW_SHARE)
