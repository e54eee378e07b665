"""What containers take from the API: configMaps, secrets, Services, service account tokens.

ConfigMaps and Secrets are watched from the first pod that refers to one; a pod that needs an object waits for the
first list. A pod's tokens are its own: requested when its first container starts and again when four fifths of
their life have passed, so a pod costs one request an hour.
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
    """Whether a pod refers to a ConfigMap, and to a Secret (the cluster's root certificate is not counted)."""
    containers: Sequence[Container] = pod.spec.containers + pod.spec.init_containers + pod.spec.ephemeral_containers
    held: list[Any] = list(pod.spec.volumes)
    for container in containers:
        held += [*container.env_from, *(v.value_from for v in container.env if v.value_from)]
    found = {kind for value in held for kind in _kinds(value)}
    return not found.isdisjoint(_CONFIG_MAP), not found.isdisjoint(_SECRET)


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
    """ConfigMaps and Secrets as the kubelet's containers see them."""

    def __init__(self, client: Client, supervisor: Supervisor) -> None:
        self._client = client
        self._supervisor = supervisor
        self.changed: Callable[[str], None] = lambda namespace: None
        """Called with the namespace of a ConfigMap or Secret that changed."""
        self._informers: dict[str, Informer[Json]] = {}
        self._watches: list[asyncio.Task[None]] = []

    async def ready_for(self, pod: Pod) -> None:
        """Returns when everything that ``pod`` refers to has been looked for.

        Raises: TimeoutError when the API stays away.
        """
        config_maps, secrets = needs(pod)
        wanted = [CONFIGMAPS] * config_maps + [SECRETS] * secrets
        for resource in wanted:
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
        """The keys of a ConfigMap, None when there is none."""
        found = self._informer(CONFIGMAPS).get(f"{namespace}/{name}")
        return None if found is None else config_map_data(found)

    def secret(self, namespace: str, name: str) -> Mapping[str, bytes] | None:
        """The keys of a Secret, None when there is none."""
        found = self._informer(SECRETS).get(f"{namespace}/{name}")
        return None if found is None else secret_data(found)


class PodTokens:
    """The service account tokens of one pod, each bound to it: when the pod goes they are worth nothing."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._held: dict[TokenRequest, tuple[str, float]] = {}

    async def for_volumes(self, pod: Pod, volumes: Iterable[Mapping[str, Any]]) -> tuple[VolumeTokens, float]:
        """The tokens that volumes project, and when (monotonic) the first has to be renewed; 0 without any.

        Raises: ApiError, ApiUnreachable.
        """
        wanted = {wish for volume in volumes for wish in token_requests(volume)}
        for wish in wanted:
            held = self._held.get(wish)
            if held is None or held[1] <= self._clock.monotonic():
                self._held[wish] = await self._request(pod, wish)
        tokens = {wish: self._held[wish][0] for wish in wanted}
        return VolumeTokens(tokens, self._client.config.ca), min((self._held[wish][1] for wish in wanted), default=0.0)

    async def _request(self, pod: Pod, wish: TokenRequest) -> tuple[str, float]:
        meta = pod.metadata
        spec: Json = {
            "expirationSeconds": wish.life_s,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid},
        }
        if wish.audience:
            spec["audiences"] = [wish.audience]
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        account = pod.spec.service_account_name or "default"
        answer = await self._client.create(SERVICEACCOUNTS, body, meta.namespace, name=account, subresource="token")
        status = answer["status"]
        left_s = (parse_rfc3339(status["expirationTimestamp"]) - self._clock.now()).total_seconds()
        return status["token"], self._clock.monotonic() + max(_RENEW_MIN_S, left_s * _RENEW_SHARE)
