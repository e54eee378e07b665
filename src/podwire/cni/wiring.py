"""How a pod's attachment becomes the wiring of ``state.pod``: names, alias, and back from the kernel.

The node's end is named ``<pod[:8]>-<hash>`` and carries the alias ``namespace/pod container``. The hash is of
container and interface and can be computed again from the alias, which tells our devices from foreign ones even
when the ledger is lost.
"""

import hashlib
from collections.abc import Collection, Sequence
from ipaddress import IPv4Address, IPv6Address

import msgspec

from podwire.cni import spec
from podwire.cni.ipam.ledger import Attachment
from podwire.cni.protocol import Key, Request
from podwire.state.link import Link
from podwire.state.network import NetworkState, Owner
from podwire.state.pod import CNI_PROTOCOL, GATEWAY4, GATEWAY6, HOST_MAC, PodWiring

OWNER = Owner(route_protocol=CNI_PROTOCOL)
"""The mark of pods' wiring, in the node's namespace and in the pods'."""

_GATEWAYS = {4: GATEWAY4, 6: GATEWAY6}
_DEFAULT = {4: "0.0.0.0/0", 6: "::/0"}
_POD_LETTERS = 8
_HASH_LETTERS = 6


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """What of the node goes into a pod's wiring: MTU in bytes."""

    mtu: int = 1500


def key_hash(container: str, ifname: str) -> str:
    """Six letters that tell an attachment."""
    digest = hashlib.sha1(f"{container}/{ifname}".encode(), usedforsecurity=False)
    return digest.hexdigest()[:_HASH_LETTERS]


def host_link_name(pod: str, key: Key) -> str:
    """The name of the node's end."""
    letters = "".join(c if c.isascii() and (c.isalnum() or c == "-") else "-" for c in pod or key.container)
    return f"{letters[:_POD_LETTERS]}-{key_hash(key.container, key.ifname)}"


def pod_mac(key: Key) -> str:
    """The hardware address of the pod's end: locally administered, the same when the pod is wired again."""
    digest = hashlib.sha1(f"mac {key}".encode(), usedforsecurity=False).digest()
    return ":".join(f"{byte:02x}" for byte in (0x02, *digest[:5]))


def alias_of(one: Attachment) -> str:
    """What ``ip link`` shows of the node's end: whose it is; the interface when it is not eth0."""
    name = f"{one.namespace}/{one.pod}" if one.pod else "-"
    suffix = "" if one.key.ifname == "eth0" else f" {one.key.ifname}"
    return f"{name} {one.key.container}{suffix}"


def owner_of(link: Link) -> tuple[str, str] | None:
    """Container and interface of a device of ours, or None for a foreign one."""
    words = link.alias.split(" ")
    if link.kind != "veth" or not 2 <= len(words) <= 3:
        return None
    container, ifname = words[1], words[2] if len(words) == 3 else "eth0"
    return (container, ifname) if link.name.endswith(f"-{key_hash(container, ifname)}") else None


def unknown(have: NetworkState, held: Collection[Key], network: str) -> list[Attachment]:
    """The wired pods that a node holds and its ledger does not, rebuilt from devices, routes and neighbours.

    A device of ours without routes is one that DEL has left for the group delete: it is left out.
    """
    known = {(key.container, key.ifname) for key in held}
    found = []
    for link in have.links:
        owner = owner_of(link)
        if owner is None or owner in known:
            continue
        routes = [r for r in have.routes if r.link == link.name and r.proto == CNI_PROTOCOL]
        macs = [n.mac for n in have.neighbours if n.link == link.name]
        if routes and macs:
            namespace, _, pod = link.alias.split(" ")[0].partition("/")
            found.append(Attachment(key=Key(network, *owner), mac=macs[0], host_link=link.name, netns="",
                                    addresses=tuple(r.dst.partition("/")[0] for r in routes),
                                    namespace=namespace if pod else "", pod=pod))
    return found


def attach(request: Request, addresses: Sequence[IPv4Address | IPv6Address]) -> Attachment:
    """The attachment that a request makes with the addresses chosen for it."""
    return Attachment(
        key=request.key,
        addresses=tuple(str(address) for address in addresses),
        host_link=host_link_name(request.pod, request.key),
        mac=request.conf.runtime_config.mac or pod_mac(request.key),
        netns=request.netns,
        namespace=request.namespace,
        pod=request.pod,
        uid=request.uid,
        ports=request.conf.runtime_config.port_mappings,
    )


def plan(one: Attachment, node: Node, netns: str) -> PodWiring:
    """The wiring of an attachment; ``netns`` is where the pod's namespace can be opened now."""
    return PodWiring(
        link=one.host_link,
        netns=netns,
        addresses=one.addresses,
        interface=one.key.ifname,
        alias=alias_of(one),
        mac=one.mac,
        mtu=node.mtu,
        route_mtu=node.mtu,
    )


def result(one: Attachment, node: Node, dns: spec.Dns) -> spec.Result:
    """What ADD answers."""
    versions = sorted({ip.version for ip in one.ips})
    return spec.Result(
        interfaces=(
            spec.Link(name=one.host_link, mac=HOST_MAC, mtu=node.mtu),
            spec.Link(name=one.key.ifname, mac=one.mac, sandbox=one.netns, mtu=node.mtu),
        ),
        ips=tuple(
            spec.Ip(address=f"{ip}/{ip.max_prefixlen}", gateway=_GATEWAYS[ip.version], interface=1)
            for ip in one.ips
        ),
        routes=tuple(spec.Route(dst=_DEFAULT[v], gw=_GATEWAYS[v]) for v in versions),
        dns=dns,
    )
