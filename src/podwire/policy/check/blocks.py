"""Findings about ipBlocks that match nothing, or that match other addresses than they seem to (pure)."""

from collections.abc import Iterator
from ipaddress import IPv4Network, IPv6Network, ip_network

from podwire.cluster.addresses import pods_by_address
from podwire.model.policy import IPBlock
from podwire.policy.check.context import ClusterIndex
from podwire.policy.check.finding import Finding
from podwire.policy.check.outline import PolicyOutline, RuleOutline
from podwire.policy.check.phrases import first_pods

Network = IPv4Network | IPv6Network

_ALL = {4: "0.0.0.0/0", 6: "::/0"}


def check(index: ClusterIndex) -> Iterator[Finding]:
    """Findings about the blocks of all rules."""
    services = [ip_network(text, strict=False) for text in index.details.service_cidrs]
    addresses = {
        text: f"{service.metadata.namespace}/{service.metadata.name}"
        for service in index.details.services
        for text in (service.spec.cluster_ips or (service.spec.cluster_ip,))
    }
    pods = {} if index.details.assumed_addresses else pods_by_address(index.world.pods)
    ranges = (
        [] if index.details.assumed_addresses else [ip_network(text, strict=False) for text in index.details.pod_cidrs]
    )
    for policy in index.policies:
        for rule in policy.rules:
            for path, block in (service for peer in rule.peers for service in peer.blocks):
                field = path if policy.kind == "ClusterNetworkPolicy" else f"{path}.cidr"
                network = _network(block.cidr)
                if network is None:
                    text = f"{block.cidr!r} is not a range of addresses: it matches nothing"
                    yield policy.finding("no-address", field, text)
                    continue
                yield from _bits(policy, field, block.cidr, network)
                yield from _exceptions(policy, path, block, network)
                if _within(network, services):
                    yield policy.finding("block-of-services", field, _of_services(network, addresses))
                elif network.prefixlen == network.max_prefixlen and str(network.network_address) in pods:
                    pod = pods[str(network.network_address)]
                    text = (
                        f"this is the address of pod {first_pods([pod])} now; a pod that replaces it gets another "
                        "address. Write a podSelector"
                    )
                    yield policy.finding("block-of-one-pod", field, text)
                elif _within(network, ranges):
                    text = (
                        f"{network} contains addresses of pods, which are reused by other pods. Write a podSelector, "
                        "unless you mean all pods of the range"
                    )
                    yield policy.finding("block-of-pods", field, text)
            if not index.details.assumed_addresses:
                yield from _families(index, policy, rule)


def _network(text: str) -> Network | None:
    try:
        return ip_network(text.strip(), strict=False)
    except ValueError:
        return None


def _bits(policy: PolicyOutline, field: str, text: str, network: Network) -> Iterator[Finding]:
    try:
        ip_network(text.strip())
    except ValueError:
        problem = f"{text} has host bits and is read as {network}. Write {network}"
        yield policy.finding("host-bits", field, problem)


def _exceptions(policy: PolicyOutline, path: str, block: IPBlock, network: Network) -> Iterator[Finding]:
    for place, text in enumerate(block.excepted):
        part = _network(text)
        field = f"{path}.except[{place}]"
        if part is None:
            yield policy.finding("no-address", field, f"{text!r} is not a range of addresses: it excepts nothing")
        elif not _within(part, [network]):
            outside = not part.overlaps(network) if part.version == network.version else True
            does = "it excepts nothing" if outside else "nothing is left of the block"
            yield policy.finding("except-outside", field, f"{text} is not within {block.cidr}: {does}")
        else:
            yield from _bits(policy, field, text, part)


def _within(part: Network, wholes: list[Network]) -> bool:
    return any(part.version == whole.version and part.subnet_of(whole) for whole in wholes)  # type: ignore[arg-type]


def _of_services(network: Network, addresses: dict[str, str]) -> str:
    service = addresses.get(str(network.network_address)) if network.prefixlen == network.max_prefixlen else None
    owner = f"the address of Service {service}" if service else "addresses of Services"
    return (
        f"{network} is {owner}. Policies see the address of the pod behind the Service, so this block has no effect. "
        "Write a podSelector with the labels of the Service's pods, and the port of the pods"
    )


def _families(index: ClusterIndex, policy: PolicyOutline, rule: RuleOutline) -> Iterator[Finding]:
    """A finding about a block with all addresses of only one family, where the pods have both families."""
    blocks = [(path, _network(block.cidr)) for peer in rule.peers for path, block in peer.blocks]
    versions = {network.version for _, network in blocks if network is not None}
    for path, network in blocks:
        if network is None or network.prefixlen or len(versions) > 1:
            continue
        pods = [pod for pod in index.pods(policy.subject) if len({":" in text for text in pod.addresses}) > 1]
        if pods:
            other_range = _ALL[10 - network.version]
            text = (
                f"{network} is every IPv{network.version} address and no IPv{10 - network.version} one; pods such as "
                f"{first_pods(pods[:1])} have both families. Add "
                f"another item with {other_range}, if you mean all addresses"
            )
            yield policy.finding("one-family", path, text)
            return
