"""Reads the facts of this node that :mod:`podwire.install.preflight` checks. Nothing is changed.

A feature of the kernel is probed in a namespace of its own. The other facts are dumps of devices, addresses, routes and
tables, three files of /proc, and lists of directories.
"""

import contextlib
import socket
from collections.abc import Iterator
from ipaddress import ip_interface, ip_network
from pathlib import Path

from podwire.agent.config import AgentConfig
from podwire.agent.neededports import needed_ports
from podwire.errors import Unsupported
from podwire.install.preflight import PreflightFacts
from podwire.kernel import iptables_chains, network
from podwire.kernel.features import Features
from podwire.kernel.firewall_chains import FirewallChains
from podwire.kernel.netlink import Netlink
from podwire.kernel.nft import Nft
from podwire.policy.registry import FEATURES as POLICY_FEATURES
from podwire.proxy.leftovers import KUBE_PROXY
from podwire.proxy.registry import FEATURES as PROXY_FEATURES
from podwire.proxy.settings import parse_settings
from podwire.routing.backend import Backend
from podwire.routing.forwarding import blockers, forward_ruleset
from podwire.routing.inputs import input_blockers
from podwire.routing.nodes import LocalNode
from podwire.routing.underlay import find
from podwire.runtime.unixsockets import answers
from podwire.state.chain_marks import KUBE_PROXY_MARK
from podwire.state.network import NetworkState

RUNTIMES = ("/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/k3s/containerd/containerd.sock")
_OWN_PROTOCOLS = range(112, 116)
"""Route protocols of podwire: a node where it ran before has its routes."""


def read_facts(config: AgentConfig, features: Features) -> PreflightFacts:
    """The facts of this thread's network namespace and of the directories that the configuration names.

    Raises: ConfigError for wrong settings; KernelError.
    """
    settings = config.routing_settings
    backend = settings.load()[settings.backend]
    with Netlink() as netlink:
        state = network.read_paths(netlink)
    conf = config.cni.conf_path if config.cni.conf_dir else None
    forward_drops, forward_opened, input_drops = _firewalls(config, backend, state)
    mtu, overhead = _sizes(state, backend)
    return PreflightFacts(
        parts=config.parts,
        backend=settings.backend,
        lacks=dict(_lacks(config, backend, features)),
        conf_dir=config.cni.conf_dir,
        conflists=tuple(sorted(path.name for path in conf.glob("*.conf*"))) if conf is not None else (),
        runtimes=tuple(path for path in RUNTIMES if _is_socket(path)),
        devices=tuple(link.name for link in state.links),
        kube_proxy=_kube_proxy(),
        cluster_cidrs=config.cluster_cidrs,
        service_cidrs=config.service_cidrs,
        routes=tuple(_foreign_routes(state)),
        mtu=mtu,
        overhead=overhead,
        ports=dict(_occupied_ports(config, backend, state)),
        forward_drops=forward_drops,
        forward_opened=forward_opened,
        input_drops=input_drops,
    )


def _is_socket(path: str) -> bool:
    """Whether a socket is there and may be used."""
    try:
        return Path(path).is_socket()
    except PermissionError:
        return False


def _lacks(config: AgentConfig, backend: Backend, features: Features) -> Iterator[tuple[str, str]]:
    proxy = parse_settings(config.proxy).mode
    needed = {
        f"routing.backend {backend.name}": backend.feature if "routing" in config.parts else "",
        f"proxy.mode {proxy}": PROXY_FEATURES.get(proxy, "") if "proxy" in config.parts else "",
        f"policy.mode {config.policy.mode}": POLICY_FEATURES.get(config.policy.mode, "")
        if "policy" in config.parts
        else "",
        "cni": "veth" if "cni" in config.parts else "",
    }
    for setting, feature in needed.items():
        if feature and (missing := features.lacks(feature)):
            yield setting, missing


def _foreign_routes(state: NetworkState) -> Iterator[tuple[str, str]]:
    """Routes to networks that podwire did not write, and the networks of addresses."""
    for route in state.routes:
        if route.proto not in _OWN_PROTOCOLS and "/" in route.dst and ip_network(route.dst).prefixlen:
            yield route.dst, route.link
    for address in state.addresses:
        interface = ip_interface(address.cidr)
        if not interface.is_loopback and not interface.is_link_local and not address.link.startswith("podwire-"):
            yield str(interface.network), address.link


def _sizes(state: NetworkState, backend: Backend) -> tuple[int, int]:
    """The MTU of the uplink, and what the backend adds; zeros without a default route."""
    uplinks = [route.link for route in state.routes if route.dst in ("default", "0.0.0.0/0", "::/0") and route.link]
    addresses = [ip_interface(a.cidr).ip for a in state.addresses if a.link in uplinks[:1]]
    addresses = [address for address in addresses if not address.is_link_local]
    underlay = find(state, addresses)
    if underlay is None:
        return 0, 0
    me = LocalNode(name="", addresses=tuple(addresses), pod_cidrs=(), underlay=underlay)
    return underlay.mtu, backend.overhead(me)


def _kube_proxy() -> str:
    """Where rules of kube-proxy are.

    Raises: KernelError when they cannot be read.
    """
    with contextlib.suppress(Unsupported), Nft() as nft:
        if any(name == KUBE_PROXY for _, name in nft.tables()):
            return "nftables"
    for _, saved in iptables_chains.saved_by_kind(None, ("mangle", "nat")):
        for tables in saved.values():
            if any(KUBE_PROXY_MARK in chains for chains in tables.values()):
                return "iptables"
    return ""


def _firewalls(
    config: AgentConfig, backend: Backend, state: NetworkState
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The firewalls that drop forwarded packets, those that the agent opens, and those that drop packets to the node.

    Raises: KernelError.
    """
    networks = tuple(map(ip_network, config.cluster_cidrs))
    addresses = (ip_interface(address.cidr).ip for address in state.addresses)
    versions = sorted({ip.version for ip in addresses if not (ip.is_loopback or ip.is_link_local)})
    hooks = FirewallChains()
    try:
        tables = hooks.tables()
        needs = tuple(needed_ports(config, backend, networks, versions))
        inputs = [item for table in tables for item in table.inputs.items()]
        opened = (
            f"{chain.name} ({table.programs.kind}, {family})"
            for table in tables
            for family, chain in table.chains.items()
            if forward_ruleset(family, networks, chain).chains
        )
        return (
            tuple(blockers(hooks.foreign(), networks)),
            tuple(opened),
            tuple(input_blockers(inputs, hooks.foreign("input"), needs)),
        )
    finally:
        hooks.close()


def _occupied_ports(config: AgentConfig, backend: Backend, state: NetworkState) -> Iterator[tuple[str, str]]:
    """The ports that podwire needs and cannot bind, unless its own devices or agent have them."""
    needed: dict[tuple[str, int], str] = {}
    if "routing" in config.parts and not any(link.name.startswith("podwire-") for link in state.links):
        needed |= {("udp", port): f"routing.backend {backend.name}" for port in backend.udp_ports}
    if config.health.port and not answers(config.agent_socket):
        needed["tcp", config.health.port] = "health.port"
    for (protocol, port), user in needed.items():
        kind = socket.SOCK_DGRAM if protocol == "udp" else socket.SOCK_STREAM
        with socket.socket(socket.AF_INET, kind) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                yield f"{protocol} {port}", user
