"""What the steps ``network`` and ``services`` of a migration do on their node. Each can be repeated.

The kernel keeps forwarding in between: routes of the old network are replaced by those that the agent wants, each at
once. A tunnel of Flannel has the network identifier and the port that podwire's device needs, so it is deleted first
and the agent's state is written by this process right behind, instead of at the agent's next attempt. Flannel's
chains and tables are removed by their names.
"""

from collections.abc import Callable
from pathlib import Path

from podwire.agent.config import AgentConfig
from podwire.errors import ClusterError, KernelError, KernelNotFound, ProtocolError, Unsupported
from podwire.http.fetch import fetch
from podwire.install.migration.configurations import SAVED
from podwire.install.migration.nodecheck import configurations, flannel_devices, kube_proxy_mode
from podwire.install.uninstall import CONFLIST
from podwire.kernel import iptables_chains, network
from podwire.kernel.netlink import Netlink
from podwire.kernel.nft import Nft
from podwire.routing.machine import OWNER as ROUTING
from podwire.state import share
from podwire.state.chain_marks import ChainMark
from podwire.state.network import NetworkState, OwnerMark

FLANNEL_CHAINS = ChainMark(
    tables=("nat", "filter"),
    constant={"nat": frozenset(("FLANNEL-POSTRTG",)), "filter": frozenset(("FLANNEL-FWD",))},
)
"""The chains of flanneld. Source: pkg/trafficmngr/iptables of Flannel."""
FLANNEL_TABLES = (("ip", "flannel-ipv4"), ("ip6", "flannel-ipv6"))
"""The nftables tables of flanneld. Source: pkg/trafficmngr/nftables of Flannel."""
ATTEMPTS = 300
PAUSE_S = 0.2

Say = Callable[[str], None]
Pause = Callable[[float], None]


def take_network(config: AgentConfig, say: Say, pause: Pause) -> None:
    """The step ``network``: the runtime uses podwire's configuration, and the kernel podwire's devices and routes.

    Raises: ClusterError, KernelError, OSError.
    """
    if "routing" in config.parts:
        _take_routes(config, say, pause)  # The agent writes the runtime's configuration when its routes are there.
    if "cni" in config.parts:
        ours = config.cni.conf_path / CONFLIST
        wait_until(ours.exists, f"the agent has not written {ours}", pause)
        for path in configurations(config):
            path.rename(path.with_name(path.name + SAVED))
            say(f"moved {path} to {path.name}{SAVED}")
    _remove_chains(say)


def _take_routes(config: AgentConfig, say: Say, pause: Pause) -> None:
    wait_until(lambda: desired_routing(config) is not None, "the agent has no plan of routing", pause)
    for attempt in range(ATTEMPTS):
        desired = desired_routing(config) or NetworkState()
        with Netlink() as netlink:
            tunnels = flannel_devices(network.read_paths(netlink))
            held = {route.key for route in desired.routes}
            if tunnels:
                network.remove(netlink, OwnerMark(route_protocol=255, links=tuple(link.name for link in tunnels)))
            report = network.apply(netlink, desired, ROUTING, held)
        for tunnel in tunnels:
            say(f"deleted {tunnel}")
        for change in report.applied:
            say(f"routing: {change}")
        if not report.failed:
            return
        if attempt + 1 == ATTEMPTS:
            report.check()
        pause(PAUSE_S)


def desired_routing(config: AgentConfig) -> NetworkState | None:
    """The state of devices and routes that the agent wants; None while it does not answer or has no plan."""
    try:
        shares = share.parse(fetch(config.agent_socket, "/state"))
    except (OSError, ProtocolError):
        return None
    for part in shares:
        if part.part == "routing" and not part.note:
            return next(iter(part.values(NetworkState)), NetworkState())
    return None


def _remove_chains(say: Say) -> None:
    try:
        if next(iptables_chains.marked(None, FLANNEL_CHAINS), None) is not None:
            iptables_chains.apply(None, FLANNEL_CHAINS, ())
            say("removed the chains of Flannel")
    except Unsupported:
        pass  # without iptables there are no chains
    try:
        with Nft() as nft:
            for family, name in FLANNEL_TABLES:
                if (family, name) in nft.tables():
                    nft.delete(family, name)
                    say(f"removed table {family} {name}")
    except (Unsupported, KernelNotFound):
        pass  # without nf_tables there are no tables


def take_services(config: AgentConfig, say: Say, pause: Pause) -> None:
    """The step ``services``: the agent's rules are in force, and it has removed those of kube-proxy.

    Raises: ClusterError when they stay; KernelError.
    """
    if "proxy" not in config.parts:
        return

    def replaced() -> bool:
        try:
            return not kube_proxy_mode()
        except KernelError:
            return False  # the agent changes the tables while they are read

    wait_until(replaced, f"rules of kube-proxy in mode {kube_proxy_mode()} are still there", pause)
    say("no rules of kube-proxy are there")


def wait_until(reached: Callable[[], bool], problem: str, pause: Pause) -> None:
    """Returns when ``reached`` is true.

    Raises: ClusterError with the problem after :data:`ATTEMPTS`.
    """
    for _ in range(ATTEMPTS):
        if reached():
            return
        pause(PAUSE_S)
    raise ClusterError(problem)


def saved_configurations(directory: Path) -> list[Path]:
    """The configurations that a migration has moved away."""
    return sorted(directory.glob(f"*{SAVED}")) if directory.is_dir() else []
