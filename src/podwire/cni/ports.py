"""hostPort: the table that sends ports of the node to pods.

Two maps per family, one for ports on a particular node address and one for ports on any; each hostPort is one map
element, so the number of rules is fixed. When a pod connects to its own hostPort, its source address is translated,
because the reply would otherwise not pass the node: a set holds the address pairs for this. 127.0.0.1 is left out (it
would need ``route_localnet``, CVE-2020-8558). Source of the design: kindnet's portmap; cost 0.3 ms per change.
"""

from collections.abc import Iterable
from ipaddress import ip_address

from podwire.cni.ipam.ledger import Attachment
from podwire.cni.spec import INVALID_CONFIG, PortMapping
from podwire.errors import CniError
from podwire.state.nft import Chain, Set, Table
from podwire.state.nft_rules import Concat, Field, LiteralValue, Mapped, Masquerade, Match, Nat, Rule, SetRef

TABLE = "podwire-hostport"
_FAMILIES = {4: ("ip", "ipv4_addr", "127.0.0.0/8"), 6: ("ip6", "ipv6_addr", "::1")}
_PROTOCOLS = ("tcp", "udp", "sctp")
_PRIORITY_DSTNAT, _PRIORITY_SRCNAT = -100, 100


def check(mapping: PortMapping) -> None:
    """Checks a mapping.

    Raises: CniError 7 that names the invalid field.
    """
    for name, port in (("hostPort", mapping.host_port), ("containerPort", mapping.container_port)):
        if not 1 <= port <= 65535:
            raise CniError(INVALID_CONFIG, f"portMappings: {name} {port} is not in 1..65535")
    if mapping.protocol.lower() not in _PROTOCOLS:
        raise CniError(INVALID_CONFIG, f"portMappings: protocol {mapping.protocol!r} is none of tcp, udp, sctp")
    try:
        if mapping.host_ip:
            ip_address(mapping.host_ip)
    except ValueError as problem:
        raise CniError(INVALID_CONFIG, f"portMappings: hostIP {mapping.host_ip!r} is not an address") from problem


def holder_of(mappings: Iterable[PortMapping], attachments: Iterable[Attachment]) -> str:
    """Names the attachment that already holds one of the ports; empty when all ports are free."""
    claims = {_claim(mapping): mapping for mapping in mappings}
    for attachment in attachments:
        for mapping in attachment.ports:
            for (protocol, port, ip), request in claims.items():
                theirs = _claim(mapping)
                if theirs[:2] == (protocol, port) and (not ip or not theirs[2] or theirs[2] == ip):
                    holder = f"{attachment.namespace}/{attachment.pod} ({attachment.key})"
                    return f"{protocol} port {request.host_port} is used by {holder}"
    return ""


def _claim(mapping: PortMapping) -> tuple[str, int, str]:
    anywhere = mapping.host_ip in ("", "0.0.0.0", "::")  # noqa: S104 - compared, not bound
    return (mapping.protocol.lower(), mapping.host_port, "" if anywhere else str(ip_address(mapping.host_ip)))


def plan(attachments: Iterable[Attachment]) -> Table | None:
    """The table for all pods with hostPorts; None when there is none."""
    with_ports = [attachment for attachment in attachments if attachment.ports]
    if not with_ports:
        return None
    sets: list[Set] = []
    translate: list[Rule] = []
    hairpin: list[Rule] = []
    for version in sorted({ip.version for attachment in with_ports for ip in attachment.ips}):
        sets_of_family, rules_of_family, hairpin_rule = _family(version, with_ports)
        sets += sets_of_family
        translate += rules_of_family
        hairpin.append(hairpin_rule)
    rules = tuple(translate)
    chains = (
        Chain(name="prerouting", type="nat", hook="prerouting", priority=_PRIORITY_DSTNAT, rules=rules),
        Chain(name="output", type="nat", hook="output", priority=_PRIORITY_DSTNAT, rules=rules),
        Chain(name="postrouting", type="nat", hook="postrouting", priority=_PRIORITY_SRCNAT, rules=tuple(hairpin)),
    )
    return Table(family="inet", name=TABLE, comment="podwire cni", chains=chains, sets=tuple(sets))


def _family(version: int, attachments: list[Attachment]) -> tuple[list[Set], list[Rule], Rule]:
    nft, kind, loopback = _FAMILIES[version]
    target = (kind, "inet_service")
    bound = Set(name=f"bound{version}", key=(kind, "inet_proto", "inet_service"), data=target)
    anywhere = Set(name=f"any{version}", key=("inet_proto", "inet_service"), data=target)
    own = Set(name=f"own{version}", key=(kind, kind))
    bound_elements, any_elements, own_elements = [], [], []
    for attachment in attachments:
        ip = next((ip for ip in attachment.ips if ip.version == version), None)
        if ip is None:
            continue
        own_elements.append(own.element(f"{ip} . {ip}"))
        for mapping in attachment.ports:
            protocol, port, host = _claim(mapping)
            comment = f"{attachment.namespace}/{attachment.pod}"[:100]
            value = f"{ip} . {mapping.container_port}"
            if not host:
                any_elements.append(anywhere.element(f"{protocol} . {port}", value, comment))
            elif ip_address(host).version == version:
                bound_elements.append(bound.element(f"{host} . {protocol} . {port}", value, comment))
    destination, protocol_field, port_field = Field(f"{nft} daddr"), Field("meta l4proto"), Field("th dport")
    local = Match(Field("fib daddr type"), LiteralValue("local"))
    translate = [
        Rule((Nat("dnat", nft, Mapped(Concat((destination, protocol_field, port_field)), bound.name), ports=True),)),
        Rule(
            (
                Match(destination, LiteralValue(loopback), "!="),
                local,
                Nat("dnat", nft, Mapped(Concat((protocol_field, port_field)), anywhere.name), ports=True),
            )
        ),
    ]
    back = Rule(
        (Match(Concat((Field(f"{nft} saddr"), destination)), SetRef(own.name)), Masquerade()),
        "a pod to its own port on the node",
    )
    sets = [bound.with_elements(bound_elements), anywhere.with_elements(any_elements), own.with_elements(own_elements)]
    return sets, translate, back
