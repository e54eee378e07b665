"""Reads a node before its migration: what ``back`` must know, and what would go wrong. Nothing is changed.

The checks of ``podwire preflight`` apply, without those that another network on the node fails by itself: its
configuration, devices, routes and rules are what the migration takes over.
"""

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path

from msgspec.structs import replace

from podwire.agent.config import AgentConfig
from podwire.cni.ipam import hostlocal
from podwire.errors import Unsupported
from podwire.install.migration.configurations import SUFFIXES, host_local
from podwire.install.migration.record import NodeBefore
from podwire.install.nodefacts import RUNTIMES, read_facts
from podwire.install.preflight import PreflightFacts, PreflightFinding, find
from podwire.install.uninstall import CONFLIST
from podwire.kernel import iptables_chains, network
from podwire.kernel.features import Features
from podwire.kernel.netlink import Netlink
from podwire.kernel.nft import Nft
from podwire.proxy.leftovers import KUBE_PROXY
from podwire.routing.underlay import OWN_PROTOCOLS
from podwire.state.chain_marks import IPTABLES_MARK, IPVS_MARK, KUBE_PROXY_MARK
from podwire.state.link import Link
from podwire.state.link_kinds import Vxlan
from podwire.state.network import NetworkState
from podwire.state.route import TABLE_MAIN, Route

FLANNEL_DEVICE = "flannel"
IPVS_DEVICE = "kube-ipvs0"
_PLAIN_BACKENDS = ("hostgw", "none")
"""The backends whose packets a node without podwire receives."""


def check(config: AgentConfig, features: Features) -> tuple[NodeBefore, tuple[PreflightFinding, ...]]:
    """The facts of this node from before, and the findings.

    Raises: ConfigError for wrong settings; KernelError, OSError when something cannot be read.
    """
    with Netlink() as netlink:
        state = network.read_paths(netlink)
    tunnels = flannel_devices(state)
    files = configurations(config)
    directory = Path(config.cni.host_local) if config.cni.host_local else None
    held = hostlocal.read(directory) if directory is not None and directory.is_dir() else []
    before = NodeBefore(
        configurations=tuple(path.name for path in files),
        routes=tuple(str(route) for route in foreign_routes(config, state) if route.link not in map(_name, tunnels)),
        devices=tuple(map(_name, tunnels)),
        kube_proxy=kube_proxy_mode(),
        host_local=str(directory) if held else "",
        pods=len(held),
    )
    facts = _without_old_network(read_facts(config, features), config)
    used = [(path.name, folder) for path in files if (folder := host_local(path.read_text(errors="replace")))]
    findings = (*find(facts), *_addresses(config, used), *_packets(config, before, tunnels))
    return before, findings


def configurations(config: AgentConfig) -> list[Path]:
    """The configurations of other plugins in the runtime's directory."""
    if not config.cni.conf_dir or not config.cni.conf_path.is_dir():
        return []
    return sorted(p for p in config.cni.conf_path.iterdir() if p.suffix in SUFFIXES and p.name != CONFLIST)


def flannel_devices(state: NetworkState) -> list[Link]:
    """The tunnels that flanneld has made."""
    return [link for link in state.links if link.name.startswith(FLANNEL_DEVICE) and link.kind == "vxlan"]


def foreign_routes(config: AgentConfig, state: NetworkState) -> Iterator[Route]:
    """The routes to pods of other nodes that another program has made."""
    for route in state.routes:
        if route.proto in OWN_PROTOCOLS or not route.via or route.table != TABLE_MAIN or "/" not in route.dst:
            continue
        if ip_network(route.dst).prefixlen and any(_inside(route.dst, whole) for whole in config.cluster_cidrs):
            yield route


def kube_proxy_mode() -> str:
    """The mode of the rules of kube-proxy in this namespace; empty where there are none.

    Raises: KernelError when they cannot be read.
    """
    try:
        with Nft() as nft:
            if any(name == KUBE_PROXY for _, name in nft.tables()):
                return "nftables"
    except Unsupported:
        pass  # without nf_tables there is no such table
    chains: set[str] = set()
    for _, saved in iptables_chains.saved_by_kind(None, ("nat",)):
        chains |= {name for tables in saved.values() for name in tables.get("nat", {})}
    if KUBE_PROXY_MARK in chains and IPTABLES_MARK not in chains:
        return "iptables"
    with Netlink() as netlink:
        bound = any(link.name == IPVS_DEVICE for link in network.read_links(netlink))
    return "ipvs" if bound and IPVS_MARK not in chains else ""


def _without_old_network(facts: PreflightFacts, config: AgentConfig) -> PreflightFacts:
    """The facts of the node as they are when the old network is gone; a runtime is there, since it runs this pod."""
    routes = [
        (dst, link) for dst, link in facts.routes if not any(_inside(dst, whole) for whole in config.cluster_cidrs)
    ]
    tunnels = [f"udp {port}" for name, port in _vxlan_ports() if name.startswith(FLANNEL_DEVICE)]
    ports = {port: user for port, user in facts.ports.items() if port not in tunnels}
    proxy = "" if "proxy" in facts.parts else facts.kube_proxy
    return replace(
        facts, runtimes=(RUNTIMES[0],), conflists=(), devices=(), kube_proxy=proxy, routes=tuple(routes), ports=ports
    )


def _vxlan_ports() -> list[tuple[str, int]]:
    with Netlink() as netlink:
        links = network.read_links(netlink)
    return [(link.name, link.attributes.port) for link in links if isinstance(link.attributes, Vxlan)]


def _addresses(config: AgentConfig, used: Iterable[tuple[str, str]]) -> Iterator[PreflightFinding]:
    """Addresses of running pods that podwire would assign again; a container may have the directory elsewhere."""
    for name, directory in used:
        if "cni" in config.parts and Path(directory).name != Path(config.cni.host_local).name:
            text = f"{name} keeps addresses of pods in {directory}, and podwire would assign them again"
            yield PreflightFinding("fault", "cni.hostLocal", text, f"set it to {directory}")


def _packets(config: AgentConfig, before: NodeBefore, tunnels: Iterable[Link]) -> Iterator[PreflightFinding]:
    """Packets that nodes of the old network and of podwire could not exchange."""
    if "routing" not in config.parts:
        return
    settings = config.routing_settings
    backend = settings.load()[settings.backend]
    devices = list(tunnels)
    for device in devices:
        if not isinstance(device.attributes, Vxlan):
            continue
        for field in ("vni", "port"):
            ours, theirs = config.routing.get(field), getattr(device.attributes, field)
            ours = {"vni": 4096, "port": 8472}[field] if ours is None else ours
            if ours != theirs:
                text = f"is {ours}, and {device.name} has {theirs}"
                yield PreflightFinding("fault", f"routing.{field}", text, f"set it to {theirs}")
        if backend.name != "vxlan":
            text = f"is {backend.name}, and nodes of Flannel use vxlan"
            yield PreflightFinding("fault", "routing.backend", text, "set it to vxlan for the migration")
        if not config.flannel.announce:
            text = "is false, so flanneld on other nodes would not reach this node"
            yield PreflightFinding("fault", "flannel.announce", text, "set it to true for the migration")
    if not devices and before.routes and backend.name not in _PLAIN_BACKENDS:
        text = f"is {backend.name}, and nodes of the old network use plain routes"
        yield PreflightFinding("fault", "routing.backend", text, "set it to hostgw for the migration")


def _inside(inner: str, outer: str) -> bool:
    """Whether a network is inside of another one of the same family."""
    small, large = ip_network(inner), ip_network(outer)
    if isinstance(small, IPv4Network) and isinstance(large, IPv4Network):
        return small.subnet_of(large)
    return isinstance(small, IPv6Network) and isinstance(large, IPv6Network) and small.subnet_of(large)


def _name(link: Link) -> str:
    return link.name
