"""The programs that can be the BGP speaker of the router between segments: ``router.daemon`` in the configuration."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from podwire.errors import ConfigError
from podwire.local.fabric import bird, frr
from podwire.local.fabric.plan import ROUTER
from podwire.local.topology import Topology
from podwire.runtime.program import Child

Daemon = Literal["bird", "frr"]
NAMES = (ROUTER, *frr.PROGRAMS)
"""The names of the processes of all programs."""
_RELOAD = (sys.executable, "-m", "podwire.local.fabric.frrprocess")


def check_installed(daemon: Daemon, source: str) -> None:
    """Checks that the programs are on this machine. Without BIRD, which is the default, the router has no BGP.

    Raises: ConfigError naming the package.
    """
    missing = [path for path in (*frr.PROGRAMS.values(), frr.VTYSH) if not Path(path).exists()]
    if daemon == "frr" and missing:
        raise ConfigError(source, "router.daemon", f"frr: {missing[0]} does not exist; install FRR (Debian: frr)")


def router_children(topology: Topology, pod_cidrs: Iterable[str], daemon: Daemon) -> tuple[Child, ...]:
    """The processes of the router; none on a fabric with one segment, which has no router."""
    if topology.segment_count == 1:
        return ()
    if daemon == "frr":
        return frr.router_children(topology, pod_cidrs, _RELOAD)
    return (bird.router_child(topology, pod_cidrs),) if Path(bird.BIRD).exists() else ()
