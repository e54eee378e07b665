"""The router of a fabric with several segments as a BGP speaker: configuration of BIRD 2 and its process (pure).

Each node of the backend ``bgp`` has a session with the router of its segment, as with the top-of-rack switch of a data
centre. So the router learns which node has which pods, and pods of different segments reach each other without
encapsulation. It takes sessions from every address of a segment (``neighbor range``), and routes inside the pod
networks and :data:`BALANCED` alone, several for one network. Nodes of other backends are no neighbours unless they
announce addresses of load balancers, and the process waits without cost.
"""

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_network

from podwire.local.fabric.plan import AS_NUMBER, BALANCED, ROUTER
from podwire.local.topology import Segment, Topology
from podwire.runtime.program import Child

BIRD = "/usr/sbin/bird"
BIRDCL = "/usr/sbin/birdcl"
ENTRY = "bird"


def router_child(topology: Topology, pod_cidrs: Iterable[str]) -> Child:
    """BIRD in the router's namespace; the fork server's entry :data:`ENTRY` runs it with its configuration."""
    path = f"{topology.run}/router/bird.conf"
    return Child(
        name=ROUTER,
        argv=(ENTRY, path),
        files={path: render(topology, pod_cidrs).encode()},
        on_file_change="reload",
        check=(BIRD, "-p", "-c", path),
        reload=(BIRDCL, "-s", socket_of(path), "configure"),
        netns=str(topology.netns(ROUTER)),
        log=f"{topology.run}/log/{ROUTER}.log",
    )


def command(path: str) -> tuple[str, ...]:
    """The command line of BIRD with the configuration at ``path``."""
    return (BIRD, "-f", "-c", path, "-s", socket_of(path), "-P", f"{path}.pid")


def socket_of(path: str) -> str:
    """The control socket of the BIRD with the configuration at ``path``."""
    return path.removesuffix(".conf") + ".ctl"


def render(topology: Topology, pod_cidrs: Iterable[str]) -> str:
    """The text of the configuration."""
    pods = [ip_network(cidr) for cidr in pod_cidrs]
    families = sorted({network.version for network in pods})
    lines = [
        "# Written by podwire; changes are overwritten.",
        f"router id {topology.segment(0).router};",
        "protocol device { scan time 10; }",
        f'protocol direct {{ {" ".join(f"ipv{version};" for version in families)} interface "eth*"; }}',
    ]
    for version in families:
        lines += [
            f"protocol kernel kernel{version} {{",
            "  merge paths on;",
            f"  ipv{version} {{ import none; export where source = RTS_BGP; }};",
            "}",
        ]
        accepted = ", ".join(f"{network}+" for network in (*pods, BALANCED) if network.version == version)
        for segment in topology.segments:
            lines += _sessions(segment, version, accepted)
    return "\n".join(lines) + "\n"


def _sessions(segment: Segment, version: int, accepted: str) -> list[str]:
    network: IPv4Network | IPv6Network = segment.network if version == 4 else segment.network6
    return [
        f"protocol bgp segment{segment.number}v{version} {{",
        f"  local {segment.router if version == 4 else segment.router6} as {AS_NUMBER};",
        f"  neighbor range {network} external;",
        f'  dynamic name "segment{segment.number}v{version}n";',
        f"  ipv{version} {{ import where net ~ [ {accepted} ]; export all; }};",
        "}",
    ]
