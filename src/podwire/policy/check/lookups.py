"""Findings about pods that may connect to others by name but cannot look up names (pure).

A pod can look up names when a rule allows UDP port 53 to a pod of cluster DNS, to a pod with that port, or to a range
of addresses for that port (a resolver of the node or outside). A range with all ports counts if it contains cluster
DNS; a common mistake is to allow all addresses except private ones, and no DNS. Policies in audit allow nothing for
pods that other policies isolate; findings about them apply when all of them are in force.

Cluster DNS means the pods of the Services of kube-system with port 53. If there are none, a pod with
``k8s-app: kube-dns`` in kube-system is assumed.
"""

from collections.abc import Iterator, Sequence
from ipaddress import ip_network

from podwire.model.meta import ObjectMeta, key_of
from podwire.model.pod import Container, ContainerPort, Pod, PodSpec, PodStatus
from podwire.model.policy import IPBlock
from podwire.model.wording import count
from podwire.policy.check.context import ClusterIndex
from podwire.policy.check.finding import Finding
from podwire.policy.check.outline import EGRESS, PolicyOutline, RuleOutline
from podwire.policy.check.phrases import first_names, first_pods
from podwire.policy.check.scope import NAME_LABEL
from podwire.policy.connectionmatch import in_block
from podwire.policy.ports import overlap
from podwire.policy.selectors import PodSelector

_DNS = 53
_NAMESPACE = "kube-system"
_USUAL = Pod(
    metadata=ObjectMeta(namespace=_NAMESPACE, name="dns", labels={"k8s-app": "kube-dns"}),
    spec=PodSpec(containers=(Container(name="dns", ports=(ContainerPort(container_port=_DNS, protocol="UDP"),)),)),
    status=PodStatus(phase="Running"),
)


def check(index: ClusterIndex) -> Iterator[Finding]:
    """Findings about pods that NetworkPolicies isolate for egress; one for pods with the same policies."""
    servers = _servers(index)
    admin = [policy for policy in index.policies if policy.tier == "Admin"]
    for policies, isolated_pods in _isolated(index):
        in_force = [policy for policy in policies if not policy.audit]
        whom = f"{count(len(isolated_pods), 'pod')} ({first_pods(isolated_pods)})"
        cases = [(in_force, [policy for policy in admin if not policy.audit])]
        if len(in_force) < len(policies):
            cases.append((policies, admin))
        for together, first in cases:
            if _lacks_dns(index, together, servers) and not any(
                _accepts(index, p, isolated_pods[0], servers) for p in first
            ):
                at = [policy for policy in together if policy.of(EGRESS)]
                yield _finding(next((policy for policy in at if policy.audit), at[0]), together, whom)
                break
    if not admin:
        yield from _of_unknown(index, servers)


def _isolated(index: ClusterIndex) -> Iterator[tuple[list[PolicyOutline], list[Pod]]]:
    """Sets of NetworkPolicies that isolate pods for egress (those in audit too), each with its pods."""
    isolating: dict[int, list[PolicyOutline]] = {}
    pods: dict[int, Pod] = {}
    for policy in index.policies:
        if policy.kind == "NetworkPolicy" and EGRESS in policy.types:
            for pod in index.pods(policy.subject):
                isolating.setdefault(id(pod), []).append(policy)
                pods[id(pod)] = pod
    together: dict[tuple[str, ...], tuple[list[PolicyOutline], list[Pod]]] = {}
    for number, policies in isolating.items():
        keys = tuple(policy.key for policy in policies)
        together.setdefault(keys, (policies, []))[1].append(pods[number])
    yield from together.values()


def _of_unknown(index: ClusterIndex, servers: tuple[Pod, ...]) -> Iterator[Finding]:
    """Findings about policies for pods that the files do not have."""
    isolating = [policy for policy in index.policies if policy.kind == "NetworkPolicy" and EGRESS in policy.types]
    for policy in isolating:
        if index.knows_pods(policy.subject) or not any(_by_name(rule) for rule in policy.of(EGRESS)):
            continue
        policies = [
            isolating_policy
            for isolating_policy in isolating
            if policy.heeds(isolating_policy) and policy.scope.within(isolating_policy.scope)
        ]
        if _lacks_dns(index, policies, servers):
            yield _finding(policy, policies, "the pods that it selects")


def _lacks_dns(index: ClusterIndex, policies: list[PolicyOutline], servers: tuple[Pod, ...]) -> bool:
    """Whether policies together allow connections to peers with names, and none allows a DNS query."""
    rules = [rule for policy in policies for rule in policy.of(EGRESS)]
    return any(_by_name(rule) for rule in rules) and not any(_allows_dns(index, rule, servers) for rule in rules)


def _finding(at: PolicyOutline, policies: list[PolicyOutline], whom: str) -> Finding:
    by = "this policy" if len(policies) == 1 else f"one of {first_names(policy.key for policy in policies)}"
    text = (
        f"{whom} may connect only where {by} allows, and no rule allows UDP port 53 to cluster DNS: names cannot be "
        f"looked up. Add a rule to namespaceSelector {{matchLabels: {{{NAME_LABEL}: {_NAMESPACE}}}}} with ports "
        "53/UDP and 53/TCP"
    )
    return at.finding("no-dns", "spec.egress", text)


def _by_name(rule: RuleOutline) -> bool:
    """Whether a rule has peers with names: pods, whose Services have names, or all addresses outside."""
    if rule.everyone or any(peer.pods is not None for peer in rule.peers):
        return True
    return any(block.cidr.endswith("/0") for peer in rule.peers for _, block in peer.blocks)


def _servers(index: ClusterIndex) -> tuple[Pod, ...]:
    servers = [
        pod
        for group in index.groups.get(_NAMESPACE, ())
        for pod in group.pods
        if any(port.port == _DNS for service in index.services_of(pod) for port in service.spec.ports)
    ]
    return tuple(servers) or (_USUAL,)


def _allows_dns(index: ClusterIndex, rule: RuleOutline, servers: tuple[Pod, ...]) -> bool:
    """Whether a rule allows a DNS query to one of the servers."""
    by_number = any(
        protocol == "UDP" and any(overlap(ranges, ((number, number),)) for number in _numbers(servers))
        for protocol, ranges in rule.numbers.ports
    )
    if not by_number and not any(_named(rule, pod) for pod in servers):
        return False
    if rule.everyone or any(peer.nodes is not None for peer in rule.peers):
        return True
    blocks = [block for peer in rule.peers for _, block in peer.blocks]
    if blocks and (rule.ports or _holds(index, blocks, servers)):
        return True
    return any(peer.pods is not None and _selects(index, peer.pods, servers) for peer in rule.peers)


def _holds(index: ClusterIndex, blocks: Sequence[IPBlock], servers: tuple[Pod, ...]) -> bool:
    """Whether a server is in one of the blocks; without known addresses, an address of each pod range is used."""
    addresses = [] if index.details.assumed_addresses else [address for pod in servers for address in pod.addresses]
    addresses = addresses or [str(ip_network(text, strict=False)[1]) for text in index.details.pod_cidrs]
    return not addresses or any(in_block(address, block) for address in addresses for block in blocks)


def _numbers(servers: tuple[Pod, ...]) -> set[int]:
    """The ports of the servers: 53, and the UDP ports that they declare."""
    numbers = {port.container_port for pod in servers for port in pod.declared_ports if port.protocol == "UDP"}
    return numbers | {_DNS}


def _named(rule: RuleOutline, pod: Pod) -> bool:
    have = {(port.name, port.protocol) for port in pod.declared_ports if port.protocol == "UDP"}
    return any((name, protocol or "UDP") in have for name, protocol in rule.names)


def _selects(index: ClusterIndex, selector: PodSelector, servers: tuple[Pod, ...]) -> bool:
    if any(any(port.container_port == _DNS for port in pod.declared_ports) for pod in index.pods(selector)):
        return True
    return any(
        selector.matches(pod.metadata.namespace, index.world.labels_of(pod.metadata.namespace), pod.metadata.labels)
        for pod in servers
    )


def _accepts(index: ClusterIndex, policy: PolicyOutline, pod: Pod, servers: tuple[Pod, ...]) -> bool:
    """Whether a cluster policy of the Admin tier accepts a DNS query of a pod before NetworkPolicies decide."""
    if key_of(pod.metadata) not in {key_of(selected.metadata) for selected in index.pods(policy.subject)}:
        return False
    return any(rule.action == "Accept" and _allows_dns(index, rule, servers) for rule in policy.of(EGRESS))
