"""The ports of a node that a firewall must not close, by the agent's configuration."""

from collections.abc import Collection, Iterator

from podwire.agent.config import AgentConfig
from podwire.routing.backend import Backend
from podwire.routing.inputs import NeededPort
from podwire.routing.nodes import Network

_DNS_PORT = 53


def needed_ports(
    config: AgentConfig, backend: Backend, networks: Collection[Network], versions: Collection[int]
) -> Iterator[NeededPort]:
    """The ports of the node's own DNS server, for pods in ``networks``, and of the tunnel of ``backend``.

    ``versions`` are the IP versions of the node's addresses.
    """
    if config.dns.node_local and {"cni", "policy"} <= set(config.parts):
        pods = tuple(networks)
        families = tuple(sorted({network.version for network in pods}))
        user = "the node's own DNS server (dns.nodeLocal)"
        yield NeededPort(port=_DNS_PORT, protocols=("udp", "tcp"), user=user, networks=pods, versions=families)
    if "routing" in config.parts:
        for port in backend.udp_ports:
            user = f"routing.backend {backend.name}"
            yield NeededPort(port=port, protocols=("udp",), user=user, versions=tuple(versions))
