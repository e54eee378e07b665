"""Explains the answer to one name: which object it comes from, why there is none, or who is asked instead (pure).

The answer is that of :class:`podwire.dns.zone.Zone`, which the server uses too; the text is made from the objects that
the name leads to.
"""

from collections.abc import Iterator, Mapping
from ipaddress import ip_address

import msgspec

from podwire.dns import wire
from podwire.dns.answers import ZoneAnswer
from podwire.dns.bpf.decision import KernelZone, decide
from podwire.dns.bpf.entries import EntryPlan
from podwire.dns.config import DnsConfig, ForwardConfig
from podwire.dns.names import decode_name, encode_name
from podwire.dns.zone import Zone, zone_options
from podwire.model.service import TRIGGER_TIME_ANNOTATION, EndpointSlice, Service
from podwire.why.dns.rules import apply_rules
from podwire.why.dns.searchpath import PodSearch

TYPES = {name: number for number, name in wire.TYPE_NAMES.items() if name in ("A", "AAAA", "SRV", "PTR", "CNAME")}
"""The record types that a question may have."""


class DnsObjects(msgspec.Struct, frozen=True):
    """The objects that the tried names lead to."""

    namespaces: frozenset[str] = frozenset()
    services: Mapping[str, Service] = {}
    """By ``namespace/name``."""
    slices: Mapping[str, tuple[EndpointSlice, ...]] = {}
    """By the key of their Service."""
    near: Mapping[str, tuple[str, ...]] = {}
    """The names of Services by namespace, for a name without a Service."""


class DnsStep(msgspec.Struct, frozen=True):
    """What happens to one name.

    ``outcome`` is ``answer``, ``no data``, ``no such name``, ``forwarded``, ``failure``, ``refused`` or ``no reply``.
    """

    name: str
    type: str
    outcome: str
    reason: str
    records: tuple[str, ...] = ()
    search: str = ""
    rules: tuple[str, ...] = ()
    """The rules of the Corefile that the name meets before the zone answers."""
    kernel: str = ""
    """From which entry the kernel of the pod's node answers; empty: a server answers."""
    node_local: bool = False
    """Whether the pod's node has a server of its own, which answers while it takes queries."""
    age_s: float | None = None
    """Seconds since the Service or its endpoints changed; None: no Service is behind the name."""

    @property
    def ends(self) -> bool:
        """Whether the resolver stops at this name."""
        return self.outcome not in ("no such name", "no data")


class DnsAnswer(msgspec.Struct, frozen=True):
    """What happens to a name: the resolver of the pod, and the names that it asks for until one has an answer."""

    name: str
    type: str
    pod: str
    resolver: PodSearch | None
    steps: tuple[DnsStep, ...]
    settings: str
    """Where the settings of the server come from."""


def fill(zone: Zone, objects: DnsObjects) -> None:
    """Puts the objects into a zone."""
    for namespace in objects.namespaces:
        zone.index.set_namespace(namespace, present=True)
    for key, service in objects.services.items():
        zone.index.set_service(key, service, 0)
    for slices in objects.slices.values():
        for item in slices:
            zone.index.set_slice(f"{item.metadata.namespace}/{item.metadata.name}", item, 0)
    zone.index.mark_synced()


def explain_name(name: str, record_type: str, zone: Zone, config: DnsConfig, objects: DnsObjects) -> DnsStep:
    """What happens to a whole name.

    Raises: ProtocolError when the text is no DNS name.
    """
    answer = zone.look_up(encode_name(name), TYPES[record_type])
    if answer.foreign:
        return DnsStep(name, record_type, "forwarded", _upstream(name, config))
    reason = _reason(name, config, objects)
    if answer.rcode == wire.NXDOMAIN:
        return DnsStep(name, record_type, "no such name", reason)
    if answer.rcode != wire.NOERROR:
        return DnsStep(name, record_type, "failure", f"{wire.RCODE_NAMES[answer.rcode]}: {reason}")
    if answer.follow:
        reason = f"{reason}; {_upstream(decode_name(answer.follow), config)}"
    outcome = "no data" if answer.empty else "answer"
    return DnsStep(name, record_type, outcome, reason, tuple(_records(answer)))


def explain_rules(
    question: tuple[str, str], zone: Zone, config: DnsConfig, objects: DnsObjects, client: str
) -> DnsStep:
    """What happens to a name and type with the plugins of a Corefile, for a client with an address (or an empty text).

    Raises: ProtocolError when the text is no DNS name.
    """
    name, record_type = question
    if not config.blocks:
        return explain_name(name, record_type, zone, config, objects)
    rules = apply_rules(name, TYPES[record_type], config, zone, client)
    if rules.end:
        return DnsStep(name, record_type, rules.end, rules.texts[-1], rules=rules.texts[:-1])
    asked_type = wire.TYPE_NAMES.get(rules.type, record_type)
    if asked_type not in TYPES:
        return DnsStep(name, record_type, "no data", f"asked for {asked_type}", rules=rules.texts)
    for tried in rules.completed or (rules.name,):
        step = explain_name(tried, asked_type, zone, config, objects)
        if step.outcome != "no such name":
            break
    else:
        step = explain_name(rules.name, asked_type, zone, config, objects)
    return msgspec.structs.replace(step, name=name, type=record_type, rules=rules.texts)


def kernel_answer(name: str, record_type: str, zone: Zone, config: DnsConfig) -> str:
    """From which entry the kernel of a node answers a whole name; empty: a server answers."""
    plan = EntryPlan(zone_options(config))
    entries = plan.everything(zone.index.namespaces, zone.index.records)
    held = KernelZone(
        plan.domain,
        entries,
        closed=plan.closed and plan.possible,
        long_names=plan.has_long_names(zone.index.namespaces, zone.index.records),
    )
    return decide(encode_name(name), TYPES[record_type], held)


def changes(name: str, config: DnsConfig, objects: DnsObjects) -> Iterator[str]:
    """The times at which the Service behind a whole name and its slices were made or changed, as the API has them."""
    labels = name.lower().removesuffix(".").removesuffix(config.domain.removesuffix(".").lower()).strip(".").split(".")
    if len(labels) < 3 or labels[-1] != "svc":
        return
    key = f"{labels[-2]}/{labels[-3]}"
    if key in objects.services:
        yield objects.services[key].metadata.creation_timestamp or ""
        for item in objects.slices.get(key, ()):
            yield item.metadata.creation_timestamp or ""
            yield item.metadata.annotations.get(TRIGGER_TIME_ANNOTATION, "")


def _records(answer: ZoneAnswer) -> Iterator[str]:
    for record in answer.records:
        names = " ".join(decode_name(item) for item in record.names)
        if record.type == wire.SRV:
            names = f"{int.from_bytes(record.head[4:6], 'big')} {names}"
        yield f"{wire.TYPE_NAMES.get(record.type, str(record.type))} {names}".rstrip()
    ring = answer.ring
    if ring is not None:
        for start in range(0, len(ring.data), ring.step):
            size = 4 if ring.step < 20 else 16
            packed = ring.data[start + ring.step - size : start + ring.step]
            yield f"{'A' if size == 4 else 'AAAA'} {ip_address(packed)}"


def _upstream(name: str, config: DnsConfig) -> str:
    """Who is asked for a name outside the zones."""
    labels = name.lower().removesuffix(".").split(".")
    for start in range(len(labels)):
        stub = ".".join(labels[start:])
        for zone, forward in config.stub_domains.items():
            if zone.lower().removesuffix(".") == stub:
                servers = ", ".join(forward.upstreams)
                return f"forwarded to {servers}, the servers of the stub domain {stub}{_following(forward)}"
    servers = ", ".join(config.upstreams or config.forward.upstreams)
    return f"forwarded to {servers or f'the name servers in {config.resolv_conf}'}{_following(config.forward)}"


def _following(forward: ForwardConfig) -> str:
    """Who is asked next, and why."""
    following = forward.next_forward
    if following is None:
        return ""
    reasons = [*forward.next_codes, *(("no data",) if forward.next_without_data else ())]
    reasons += [f"names below {zone}" for zone in forward.except_zones]
    return f", and for {', '.join(reasons)} to {', '.join(following.upstreams)}{_following(following)}"


def _reason(name: str, config: DnsConfig, objects: DnsObjects) -> str:
    """The object behind a name in the zone, or what is missing."""
    domain = config.domain.removesuffix(".").lower()
    lower = name.lower()
    if lower in config.hosts:
        return "the fixed name in hosts"
    relative = lower.removesuffix(domain).removesuffix(".").split(".")
    if not lower.endswith(domain) or len(relative) < 2 or relative[-1] not in ("svc", "pod"):
        return f"the zone {domain} has no such name" if lower.endswith(domain) else "the reverse zone of the cluster"
    kind, namespace = relative[-1], relative[-2]
    if config.namespaces and namespace not in config.namespaces:
        return f"namespace {namespace} is not among the namespaces that the server has"
    if namespace not in objects.namespaces:
        return f"there is no namespace {namespace}"
    if len(relative) == 2:
        return f"namespace {namespace}"
    if kind == "pod":
        return f"an address of a pod in {namespace} ({config.pods})"
    return _service_reason(relative[-3], namespace, relative[:-3], objects)


def _service_reason(name: str, namespace: str, below: list[str], objects: DnsObjects) -> str:
    key = f"{namespace}/{name}"
    service = objects.services.get(key)
    if service is None:
        others_there = ", ".join(objects.near.get(namespace, ())[:5])
        return f"there is no Service {key}" + (f"; namespace {namespace} has {others_there}" if others_there else "")
    if service.spec.type == "ExternalName":
        return f"Service {key} is an alias (ExternalName) of {service.spec.external_name}"
    ready = sum(
        len(endpoint.addresses)
        for item in objects.slices.get(key, ())
        for endpoint in item.endpoints or ()
        if endpoint.conditions.ready is not False
    )
    if service.spec.cluster_ip == "None":
        text = f"Service {key} is headless and has {ready} ready endpoint addresses"
    else:
        text = f"Service {key} has the address {', '.join(service.spec.cluster_ips) or service.spec.cluster_ip}"
    return f"{text}; {'.'.join(below)} is a port or an endpoint of it" if below else text
