"""API objects for containers: ConfigMaps, Secrets and service account tokens.

The kubelet watches each ConfigMap and Secret by itself, from the first pod of the node that refers to the object to the
end of the last one: a node may read no other objects. A pod that needs an object waits for the first list. Each pod has
its own tokens. A token is requested when the pod's first container starts and again when four fifths of its lifetime
have passed, so a pod costs one request an hour.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from podwire.embedded.kubelet.volumes import TokenRequest, VolumeTokens, config_map_data, secret_data, token_requests
from podwire.errors import ConfigError
from podwire.kube.client import Client
from podwire.kube.events import EventRecorder
from podwire.kube.informer import Informer
from podwire.kube.resources import CONFIGMAPS, SECRETS, SERVICEACCOUNTS, Json, Resource
from podwire.model.meta import ObjectReference
from podwire.model.pod import Container, Pod
from podwire.runtime.clock import Clock, parse_rfc3339
from podwire.runtime.supervise import Supervisor

_RENEW_SHARE = 0.8
_RENEW_MIN_S = 5.0
_SYNC_S = 10.0
_ROOT_CA = "kube-root-ca.crt"

Reference = tuple[str, str]
"""Plural and name of an object in the pod's namespace."""

_NAMES: Mapping[str, tuple[str, str]] = {
    "configMap": ("configmaps", "name"),
    "configMapRef": ("configmaps", "name"),
    "configMapKeyRef": ("configmaps", "name"),
    "secretRef": ("secrets", "name"),
    "secretKeyRef": ("secrets", "name"),
}
"""Fields that refer to an object: its plural, and the field of its name."""


def references(pod: Pod, *, root_ca: bool = False) -> frozenset[Reference]:
    """The ConfigMaps and Secrets that a pod's containers use.

    The cluster's root certificate in a volume is one of them only with ``root_ca``.
    """
    containers: Sequence[Container] = pod.spec.containers + pod.spec.init_containers + pod.spec.ephemeral_containers
    refs = {reference for volume in pod.spec.volumes for reference in _below(volume)}
    if not root_ca:
        refs.discard(("configmaps", _ROOT_CA))
    for container in containers:
        for value in (*container.env_from, *(v.value_from for v in container.env if v.value_from)):
            refs.update(_below(value))
    return frozenset(reference for reference in refs if reference[1])


def _below(value: Any) -> Iterable[Reference]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if isinstance(inner, Mapping) and key in _NAMES:
                plural, field = _NAMES[key]
                yield plural, str(inner.get(field) or "")
            elif isinstance(inner, Mapping) and key == "secret":
                yield "secrets", str(inner.get("secretName") or inner.get("name") or "")
            yield from _below(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _below(inner)


class _ObjectWatch:
    """The watch of one object, and the pods that use it."""

    def __init__(self, informer: Informer[Json], task: asyncio.Task[None]) -> None:
        self.informer = informer
        self.task = task
        self.users: set[str] = set()


class ConfigObjects:
    """The ConfigMaps and Secrets that pods of the node refer to."""

    def __init__(self, client: Client, supervisor: Supervisor, events: EventRecorder) -> None:
        """An object with unusable values gets one of ``events``."""
        self._client = client
        self._supervisor = supervisor
        self._events = events
        self.changed: Callable[[str], None] = lambda namespace: None
        """Called with the namespace of a ConfigMap or Secret that changed."""
        self._watches: dict[tuple[str, str, str], _ObjectWatch] = {}

    async def ready_for(self, pod: Pod) -> None:
        """Returns when the first lists of all objects that ``pod`` refers to have arrived.

        Raises: TimeoutError when the API server does not answer within 10 seconds.
        """
        watches = [
            self._watch(plural, pod.metadata.namespace, name, pod.metadata.uid)
            for plural, name in sorted(references(pod, root_ca=not self._client.config.ca))
        ]
        for watch in watches:
            if not watch.informer.synced.is_set():
                async with asyncio.timeout(_SYNC_S):
                    await watch.informer.synced.wait()

    def release(self, uid: str) -> None:
        """Ends the watches that only the pod of this uid needed."""
        for key, watch in tuple(self._watches.items()):
            watch.users.discard(uid)
            if not watch.users:
                watch.task.cancel()
                del self._watches[key]

    def close(self) -> None:
        """Ends the watches."""
        for watch in self._watches.values():
            watch.task.cancel()

    def _watch(self, plural: str, namespace: str, name: str, uid: str) -> _ObjectWatch:
        key = (plural, namespace, name)
        watch = self._watches.get(key)
        if watch is None:
            resource = CONFIGMAPS if plural == "configmaps" else SECRETS
            informer: Informer[Json] = Informer(
                self._client, resource, namespace=namespace, field_selector=f"metadata.name={name}"
            )
            self._events.follow_rejected(informer)
            informer.subscribe(partial(self._on_change, resource))
            task = self._supervisor.start(f"watch {plural} {namespace}/{name}", informer.run)
            watch = self._watches[key] = _ObjectWatch(informer, task)
        watch.users.add(uid)
        return watch

    def _on_change(self, resource: Resource[Json], key: str, _old: Json | None, new: Json | None) -> None:
        namespace, _, name = key.partition("/")
        try:
            (config_map_data if resource is CONFIGMAPS else secret_data)(new or {})
        except ConfigError as problem:
            subject = ObjectReference(
                api_version=resource.api_version, kind=resource.kind, namespace=namespace, name=name,
                uid=str(((new or {}).get("metadata") or {}).get("uid") or ""),
            )  # fmt: skip
            self._events.event(subject, "Warning", "InvalidObject", f"kubelet cannot use the values: {problem}")
        self.changed(namespace)

    def _document(self, plural: str, namespace: str, name: str) -> Json | None:
        watch = self._watches.get((plural, namespace, name))
        return watch.informer.get(f"{namespace}/{name}") if watch is not None else None

    def config_map(self, namespace: str, name: str) -> Mapping[str, bytes] | None:
        """The values of a ConfigMap by key; None when the ConfigMap does not exist."""
        document = self._document("configmaps", namespace, name)
        return None if document is None else config_map_data(document)

    def secret(self, namespace: str, name: str) -> Mapping[str, bytes] | None:
        """The values of a Secret by key; None when the Secret does not exist."""
        document = self._document("secrets", namespace, name)
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
