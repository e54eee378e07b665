"""Asks what happens to a DNS name: reads the objects that its attempts lead to, and explains each attempt.

At most one Service with its slices, its namespace and the names of the Services beside it are read for each attempt.
The settings of the server come from the ConfigMap ``podwire-dns``, or from CoreDNS' Corefile, or are the defaults.
"""

import datetime
import os
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch

import msgspec

from podwire.cluster.names import NODE_DNS, NODE_LOCAL_DNS
from podwire.dns.config import DnsConfig, parse_config
from podwire.dns.corefile.settings import read_settings
from podwire.dns.corefile.syntax import ReadFiles, parse_corefile
from podwire.dns.zone import Zone, zone_options
from podwire.errors import ConfigError, NotFound, ProtocolError
from podwire.kube.client import Client
from podwire.kube.resources import CONFIGMAPS, NAMESPACES, NODES, SERVICES
from podwire.model.pod import Pod
from podwire.model.service import EndpointSlice, Service
from podwire.runtime.clock import parse_rfc3339
from podwire.why.api_objects import ApiObjects
from podwire.why.dns.lookup import TYPES, DnsAnswer, DnsObjects, DnsStep, changes, explain_rules, fill, kernel_answer
from podwire.why.dns.rules import apply_rules
from podwire.why.dns.searchpath import TriedName, search_of, tried_names

_NAMESPACE = "kube-system"


class DnsQuestion(msgspec.Struct, frozen=True):
    """A name as typed, a record type, and the pod that asks as ``namespace/name`` (empty: nobody)."""

    name: str
    type: str = "A"
    pod: str = ""


async def ask(question: DnsQuestion, client: Client) -> DnsAnswer:
    """The answer with the objects of an API server.

    Raises: ConfigError for a name, type or pod that does not exist; ApiError, ApiUnreachable.
    """
    record_type = question.type.upper()
    if record_type not in TYPES:
        raise ConfigError(
            "TYPE", "", f"{question.type!r} is not a record type that podwire knows; expected one of {', '.join(TYPES)}"
        )
    config, settings = await server_settings(client)
    pod = await _pod(client, question.pod) if question.pod else None
    asker = f"{pod.metadata.namespace}/{pod.metadata.name}" if pod is not None else ""
    resolver = search_of(pod, config.domain) if pod is not None else None
    attempts = tried_names(question.name, resolver)
    if resolver is not None and not resolver.cluster:
        servers = ", ".join(resolver.servers) or "the name servers of its node"
        steps = tuple(
            DnsStep(item.name, record_type, "forwarded", f"dnsPolicy {resolver.policy}: asked at {servers}")
            for item in attempts
        )
        return DnsAnswer(question.name, record_type, asker, resolver, steps[:1], settings)
    steps = await _explain(attempts, record_type, config, client, pod)
    in_kernel, node_local = await _answers_of_node(client, pod.spec.node_name) if pod is not None else (False, False)
    steps = tuple(
        msgspec.structs.replace(step, kernel=step.kernel if in_kernel else "", node_local=node_local) for step in steps
    )
    return DnsAnswer(question.name, record_type, asker, resolver, steps, settings)


async def _explain(
    attempts: tuple[TriedName, ...], record_type: str, config: DnsConfig, client: Client, pod: Pod | None
) -> tuple[DnsStep, ...]:
    """The steps up to the first one that ends the search."""
    reader, steps = _Reader(client, config), []
    for attempt in attempts:
        zone = Zone(zone_options(config))
        if pod is not None:
            zone.index.set_pod(f"{pod.metadata.namespace}/{pod.metadata.name}", pod)
        address = pod.status.pod_ip if pod is not None else ""
        try:
            objects = await reader.read(*_names(attempt.name, record_type, config, zone, address))
            fill(zone, objects)
            step = explain_rules((attempt.name, record_type), zone, config, objects, address)
        except ProtocolError as failure:
            raise ConfigError("NAME", "", f"{attempt.name!r} is not a DNS name: {failure}") from failure
        kernel = kernel_answer(attempt.name, record_type, zone, config)
        age_s = _age_s(changes(attempt.name, config, objects), client.clock.now())
        steps.append(msgspec.structs.replace(step, search=attempt.search, kernel=kernel, age_s=age_s))
        if step.ends:
            break
    return tuple(steps)


def _age_s(times: Iterable[str], now: datetime.datetime) -> float | None:
    """Seconds since the latest of these times; texts that are none do not count."""
    ages = []
    for text in times:
        try:
            ages.append((now - parse_rfc3339(text)).total_seconds())
        except ValueError:
            continue
    return max(0.0, min(ages)) if ages else None


def _names(name: str, record_type: str, config: DnsConfig, zone: Zone, address: str) -> tuple[str, ...]:
    """The names whose objects may answer: the name itself, and those that rules of the Corefile make of it.

    Raises: ProtocolError when the text is no DNS name.
    """
    if not config.blocks:
        return (name,)
    rules = apply_rules(name, TYPES[record_type], config, zone, address)
    return tuple(dict.fromkeys((name, rules.name, *rules.completed)))


class _Reader:
    """Reads what names lead to; each alias of a Service (ExternalName) inside the zone is followed once."""

    def __init__(self, client: Client, config: DnsConfig) -> None:
        self._client = client
        self._objects = ApiObjects(client)
        self._domain = config.domain.removesuffix(".").lower()

    async def read(self, *names: str) -> DnsObjects:
        """The objects for whole names."""
        namespaces: set[str] = set()
        services: dict[str, Service] = {}
        slices: dict[str, tuple[EndpointSlice, ...]] = {}
        near: dict[str, tuple[str, ...]] = {}
        pending = list(names)
        for _ in range(8):
            if not pending:
                break
            namespace, service_name = self._split(pending.pop())
            if not namespace or not await self._exists(namespace):
                continue
            namespaces.add(namespace)
            if not service_name or f"{namespace}/{service_name}" in services:
                continue
            service = await self._objects.service(namespace, service_name)
            if service is None:
                listed = (await self._client.list(SERVICES, namespace)).items
                near[namespace] = tuple(sorted(item.metadata.name for item in listed))
                continue
            key = f"{namespace}/{service_name}"
            services[key] = service
            slices[key] = await self._objects.slices(service)
            if service.spec.external_name:
                pending.append(service.spec.external_name)
        return DnsObjects(frozenset(namespaces), services, slices, near)

    def _split(self, name: str) -> tuple[str, str]:
        """The namespace and the Service of a name in the zone; empty where it has none."""
        lower = name.lower().removesuffix(".")
        if not lower.endswith(f".{self._domain}"):
            return "", ""
        labels = lower.removesuffix(f".{self._domain}").split(".")
        if len(labels) < 2 or labels[-1] not in ("svc", "pod"):
            return "", ""
        return labels[-2], labels[-3] if len(labels) > 2 and labels[-1] == "svc" else ""

    async def _exists(self, namespace: str) -> bool:
        try:
            await self._client.get(NAMESPACES, namespace)
        except NotFound:
            return False
        return True


async def _answers_of_node(client: Client, node: str) -> tuple[bool, bool]:
    """Whether the kernel of a node answers queries of its pods, and whether a server of the node does."""
    try:
        annotations = (await client.get(NODES, node))["metadata"].get("annotations") or {}
    except NotFound:
        return False, False
    return annotations.get(NODE_DNS) == "kernel", annotations.get(NODE_LOCAL_DNS) == "yes"


async def _pod(client: Client, text: str) -> Pod:
    """A pod by its name, by the beginning of its name up to a dash, or the first one with a label.

    Raises: ConfigError when there is none.
    """
    namespace, slash, name = text.rpartition("/")
    namespace = namespace if slash else "default"
    label, equals, value = name.partition("=")
    pods = sorted(await ApiObjects(client).pods(namespace), key=lambda pod: pod.metadata.name)
    for pod in pods:
        own = pod.metadata.name
        if pod.metadata.labels.get(label) == value if equals else own == name or own.startswith(f"{name}-"):
            return pod
    expected = "expected namespace/name, or a label as in shop/app=web"
    raise ConfigError("--from", "", f"namespace {namespace} has no pod {name}; {expected}")


async def server_settings(client: Client) -> tuple[DnsConfig, str]:
    """The settings of cluster DNS, and where they come from.

    Raises: ConfigError naming the setting, or the line of the Corefile.
    """
    for name, key in (("podwire-dns", "config.yaml"), ("podwire-dns", "Corefile"), ("coredns", "Corefile")):
        data = await _data(client, name)
        if key not in data:
            continue
        source = f"ConfigMap {_NAMESPACE}/{name}"
        if key == "Corefile":
            files = _mounted(data, await _data(client, "coredns-custom"))
            return read_settings(parse_corefile(data[key], source, os.environ, files), source, files), source
        return parse_config(data[key], source), source
    return DnsConfig(), "the defaults"


def _mounted(own: Mapping[str, str], custom: Mapping[str, str]) -> ReadFiles:
    """Reads files as the pods of cluster DNS have them: beside the Corefile, and ``coredns-custom`` in ``custom``."""

    def read_files(pattern: str) -> dict[str, str]:
        folder, _, name = pattern.rpartition("/")
        data = custom if folder.rpartition("/")[2] == "custom" else own
        return {f"{folder}/{key}": data[key] for key in sorted(data) if fnmatch(key, name)}

    return read_files


async def _data(client: Client, name: str) -> Mapping[str, str]:
    try:
        settings = await client.get(CONFIGMAPS, name, _NAMESPACE)
    except NotFound:
        return {}
    return settings.get("data") or {}
