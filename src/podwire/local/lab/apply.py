"""Makes the kernel hold the conditions of a running cluster's links.

Cut links, losses and MTUs are part of the fabric's planned state. Delays are netem qdiscs at both ends of a link; tc(8)
sets them, on kernels with netem.
"""

import json
import subprocess
from pathlib import Path

from podwire.errors import ClusterError
from podwire.kernel import netns
from podwire.kernel.nft import Nft
from podwire.local.fabric import build
from podwire.local.fabric.plan import ROUTER, SWITCH, plan
from podwire.local.lab import record
from podwire.local.lab.conditions import HOST, LabConditions, mtus, port_of
from podwire.local.lab.rules import FAMILY, TABLE, table
from podwire.local.topology import Topology
from podwire.state.nft import Table


def rebuild(topology: Topology, nodes: int, conditions: LabConditions) -> None:
    """Makes the fabric of ``nodes`` nodes, with its MTUs, and the conditions. Raises: as :func:`apply`."""
    build.nodes(topology, plan(topology, nodes, mtus(conditions)))
    apply(topology, nodes, conditions)


def apply(topology: Topology, nodes: int, conditions: LabConditions) -> None:
    """Makes cut links, losses and delays those of ``conditions``; every step may be repeated.

    Does nothing when there are no conditions and were none before.

    Raises: KernelError; ClusterError when the kernel has no netem, or tc(8) is missing or fails.
    """
    known = record.read_applied(topology)
    if conditions == known == LabConditions():
        return
    record.write_applied(topology, LabConditions({**known.links, **conditions.links}, conditions.pairs))
    desired = table(topology, nodes, conditions)
    with Nft(Path(topology.netns(SWITCH))) as nft:
        if isinstance(desired, Table):
            nft.apply(desired)
        elif (FAMILY, TABLE) in nft.tables():
            nft.delete(FAMILY, TABLE)
    delayed = {name for links in (known.links, conditions.links) for name, link in links.items() if link.delay_ms}
    for station in sorted(delayed):
        link = conditions.links.get(station)
        for namespace, device in _ends(topology, nodes, station):
            if namespace is None or netns.exists(namespace):
                set_delay(namespace, device, link.delay_ms if link is not None else 0.0)
    record.write_applied(topology, conditions)


def _ends(topology: Topology, nodes: int, station: str) -> tuple[tuple[Path | None, str], ...]:
    """Namespace and device of both ends of a station's link; None is this machine."""
    switch = Path(topology.netns(SWITCH))
    if station == HOST:
        return (None, topology.host_link), (switch, port_of(topology, nodes, station, TABLE))
    kind, _, number = station.partition("-")
    if kind == "segment":
        return (Path(topology.netns(ROUTER)), f"eth{number}"), (switch, f"router-{number}")
    if int(number) > nodes:
        return ()
    return (Path(topology.netns(station)), "eth0"), (switch, f"port-{number}")


def set_delay(namespace: Path | None, device: str, delay_ms: float) -> None:
    """Makes a device delay its outgoing packets; 0 removes the delay.

    Raises: ClusterError when the kernel has no netem, or tc(8) is missing or fails.
    """
    shown = json.loads(_tc(namespace, "-j", "qdisc", "show", "dev", device) or "[]")
    delayed = any(qdisc.get("kind") == "netem" and qdisc.get("root") for qdisc in shown)
    if delay_ms:
        # 100,000 packets wait at the most: 20 ms at 5 million packets a second.
        _tc(namespace, "qdisc", "replace", "dev", device, "root", "netem", "delay", f"{delay_ms}ms", "limit", "100000")
    elif delayed:
        _tc(namespace, "qdisc", "del", "dev", device, "root")


def _tc(namespace: Path | None, *arguments: str) -> str:
    with netns.inside(namespace):
        try:
            done = subprocess.run(("tc", *arguments), capture_output=True, text=True, check=False)
        except FileNotFoundError as failure:
            raise ClusterError("delays need tc(8) of iproute2, which is not installed") from failure
    if done.returncode:
        if "qdisc kind is unknown" in done.stderr:
            raise ClusterError("delays need netem, which this kernel lacks (CONFIG_NET_SCH_NETEM)")
        raise ClusterError(f"tc {' '.join(arguments)}: {done.stderr.strip() or done.returncode}")
    return done.stdout
