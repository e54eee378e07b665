"""Findings about ports that no pod has: by name, with this protocol, or with this number (pure).

Containers need not declare their ports, so a number that no pod declares is no finding by itself. It is a finding if a
Service or another protocol shows which port was probably intended.
"""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from podwire.model.pod import ContainerPort, Pod
from podwire.model.service import Service, ServicePort
from podwire.policy.check.context import ClusterIndex
from podwire.policy.check.finding import Finding
from podwire.policy.check.outline import INGRESS, PolicyOutline, PortOutline, RuleOutline
from podwire.policy.check.phrases import first_names, first_pods, none_has
from podwire.policy.ports import merged, overlap


def check(index: ClusterIndex) -> Iterator[Finding]:
    """Findings about the ports of all rules."""
    for policy in index.policies:
        for rule in policy.rules:
            for port in rule.ports:
                if port.first > port.last:
                    text = f"the range {port.first} to {port.last} has no port: nothing matches it"
                    yield policy.finding("end-before-port", port.path, text)
            pods = index.destinations(policy, rule)
            if pods:
                yield from _of_rule(index, policy, rule, pods)


def _of_rule(index: ClusterIndex, policy: PolicyOutline, rule: RuleOutline, pods: Sequence[Pod]) -> Iterator[Finding]:
    only_pods = rule.direction == INGRESS or index.only_pods(rule.peers)
    for port in rule.ports:
        if port.name:
            yield from _named(policy, rule, port, pods)
        elif port.number is not None and only_pods:
            yield from _numbered(index, policy, rule, port, pods)


def _named(policy: PolicyOutline, rule: RuleOutline, port: PortOutline, pods: Sequence[Pod]) -> Iterator[Finding]:
    have: list[Pod] = []
    matching_protocols: set[str] = set()
    for pod in pods:
        protocols = {declared.protocol or "TCP" for declared in pod.declared_ports if declared.name == port.name}
        if port.protocol in protocols or (protocols and not port.protocol):
            have.append(pod)
        matching_protocols |= protocols
    if not have and matching_protocols:
        text = (
            f"the pods declare {port.name} with protocol {first_names(sorted(matching_protocols))}, "
            f"not {port.protocol}: nothing matches. Write protocol: {min(matching_protocols)}"
        )
        yield policy.finding("port-name-protocol", port.path, text)
    elif not have:
        text = f"{none_has(pods)} port named {port.name}: nothing matches{_instead(port, pods)}"
        yield policy.finding("port-name-unknown", port.path, text)
    elif len(have) < len(pods) and rule.direction == INGRESS:
        lack = [pod for pod in pods if pod not in have]
        text = f"{first_pods(lack)} have no port named {port.name}: it allows nothing for these pods"
        yield policy.finding("port-name-partly", port.path, text)


def _instead(port: PortOutline, pods: Sequence[Pod]) -> str:
    names = sorted({declared.name for pod in pods for declared in pod.declared_ports if declared.name})
    alike = get_close_matches(port.name, names, 1)
    if alike:
        return f"; there is a port named {alike[0]}"
    return f"; the pods' port names are {first_names(names)}" if names else "; their ports have no names"


def _numbered(
    index: ClusterIndex, policy: PolicyOutline, rule: RuleOutline, port: PortOutline, pods: Sequence[Pod]
) -> Iterator[Finding]:
    same = [declared for pod in pods for declared in pod.declared_ports if declared.container_port == port.number]
    if any((declared.protocol or "TCP") == port.protocol for declared in same):
        return
    declared_protocols = sorted(
        {declared.protocol for declared in same if not _covers(rule, declared.protocol, declared.container_port)}
    )
    if same and declared_protocols:
        declared_text = first_names(declared_protocols)
        advice = f"Write protocol: {declared_protocols[0]}"
        text = f"pods declare {port.number} as {declared_text}, not as {port.protocol}. {advice}"
        yield policy.finding("port-protocol", port.path, text)
    if same:
        return
    for service, mapped, target in _services(index, port, pods):
        if _covers(rule, port.protocol, target):
            continue
        name = f"{service.metadata.namespace}/{service.metadata.name}"
        text = (
            f"{mapped.port} is the port of Service {name}, which forwards to port {target} of its pods. Policies see "
            f"the pods' port: connections through the Service are not matched. Write {target}{_or_name(pods, target)}"
        )
        yield policy.finding("service-port", port.path, text)
        return


def _or_name(pods: Sequence[Pod], target: int) -> str:
    names = {
        declared.name
        for pod in pods
        for declared in pod.declared_ports
        if declared.container_port == target and declared.name
    }
    return f", or its name {min(names)}" if names else ""


def _services(
    index: ClusterIndex, port: PortOutline, pods: Sequence[Pod]
) -> Iterator[tuple[Service, ServicePort, int]]:
    """The Services of these pods that map this port to another port of the pods: Service, its port, the target port."""
    checked: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
    for pod in pods:
        labels_key = pod.metadata.namespace, tuple(sorted(pod.metadata.labels.items()))
        if labels_key in checked:
            continue
        checked.add(labels_key)
        for service in index.services_of(pod):
            if service.headless:
                continue
            for mapped in service.spec.ports:
                if (mapped.port, mapped.protocol or "TCP") == (port.number, port.protocol):
                    target = _target(mapped, pod.declared_ports)
                    if target not in (None, port.number):
                        assert target is not None
                        yield service, mapped, target


def _target(mapped: ServicePort, ports: Sequence[ContainerPort]) -> int | None:
    target_port = mapped.target_port
    if isinstance(target_port, str):
        protocol = mapped.protocol or "TCP"
        named = (
            declared for declared in ports if (declared.name, declared.protocol or "TCP") == (target_port, protocol)
        )
        return next((declared.container_port for declared in named), None)
    return target_port or mapped.port


def _covers(rule: RuleOutline, protocol: str, number: int) -> bool:
    ranges = dict(rule.numbers.ports).get(protocol, ())
    return bool(overlap(merged(ranges), ((number, number),)))
