"""BIRD on nodes and on a router of a test: answers of its control socket, and a handwritten configuration."""

import errno
import os
import re
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from msgspec.structs import replace
from tests.kernel.routing_nodes import Cluster, ClusterNode
from tests.kernel.routing_programs import Nodes, kill_programs

from podwire.bgp.process import BIRD, BIRDCL
from podwire.kernel import netns
from podwire.model.bgp import BgpConfigurationObject, BgpFilterObject, BgpPeerObject, IpPoolObject
from podwire.routing.backends.bgp.filters import read_filter
from podwire.routing.backends.bgp.objects import (
    BgpObjects,
    ConfigurationValues,
    Surroundings,
    read_configuration,
    read_peer,
    read_pool,
)
from podwire.routing.settings import RoutingSettings, parse_settings
from podwire.runtime.childrecord import read_record

T = TypeVar("T")
Json = dict[str, Any]

ROUTER_AS = 64600
OUTSIDE = "198.51.100.0/24"
"""A network that the router announces; the address .1 of it is the router's."""
TCP_MD5SIG = 14  # linux/tcp.h


Make = Callable[..., Cluster]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Builds the nodes of a test, and removes them with their BIRD processes."""
    clusters: list[Cluster] = []

    def build(count: int, segments: int = 1, families: str = "4") -> Cluster:
        clusters.append(Cluster(tmp_path, count, segments, families))
        clusters[0].need("bgp")
        return clusters[0]

    yield build
    kill_programs(tmp_path)
    for cluster in clusters:
        cluster.close()


def settings(**section: object) -> RoutingSettings:
    """The backend bgp with fields of its section."""
    return parse_settings({"backend": "bgp", "bgp": section}, "test")


def objects(*parsed: Json) -> BgpObjects:
    """The checked objects of projectcalico.org/v3, each given by its kind, name and spec."""
    around = Surroundings(secrets=lambda _name, key: key)  # a test's password is the name of its key
    filters = {o["name"]: read_filter(_object(o, BgpFilterObject)) for o in parsed if o["kind"] == "BGPFilter"}
    around = replace(around, filters=filters)
    default = [read_configuration(_object(o, BgpConfigurationObject), around) for o in parsed if o["name"] == "default"]
    return BgpObjects(
        default=default[0] if default else ConfigurationValues(),
        peers=tuple(read_peer(_object(o, BgpPeerObject), around) for o in parsed if o["kind"] == "BGPPeer"),
        pools=tuple(read_pool(_object(o, IpPoolObject), around) for o in parsed if o["kind"] == "IPPool"),
    )


def _object(document: Json, kind: type[T]) -> T:
    return msgspec.convert({"metadata": {"name": document["name"]}, "spec": document["spec"]}, kind)


def configuration(**spec: Any) -> Json:
    """The BGPConfiguration of all nodes."""
    return {"kind": "BGPConfiguration", "name": "default", "spec": spec}


def peer(name: str, **spec: Any) -> Json:
    return {"kind": "BGPPeer", "name": name, "spec": spec}


def bgp_filter(name: str, **spec: Any) -> Json:
    return {"kind": "BGPFilter", "name": name, "spec": spec}


async def take(cluster: Cluster, nodes: Nodes, *parsed: Json) -> None:
    """Gives the objects to all nodes and settles."""
    for node in cluster.all:
        node.router.take_objects("bgp", objects(*parsed))
    await nodes.settle()


def learned(node: ClusterNode) -> str:
    """The routes that BIRD wrote on a node."""
    return node.shows("ip", "route", "show", "proto", "bird")


def router_peers(cluster: Cluster, **fields: object) -> list[dict[str, object]]:
    """The router as the external peer of the nodes of each segment."""
    return [
        {
            "address": f"10.89.{segment}.1",
            "asNumber": ROUTER_AS,
            "nodes": [node.name for node in cluster.all if node.segment == segment],
            **fields,
        }
        for segment in range(cluster.segments)
    ]


def ask(control: Path, *arguments: str) -> str:
    """An answer of BIRD; empty when it does not run."""
    done = subprocess.run([BIRDCL, "-s", str(control), *arguments], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def control(node: ClusterNode) -> Path:
    return Path(node.router.own.run_dir, "bird.ctl")


def sessions(where: Path) -> dict[str, tuple[str, str]]:
    """The sessions by name: the time since when, and the state; ``Established`` is what is wanted."""
    rows = re.findall(r"^(\w+) +BGP +\S+ +\S+ +(\S+(?: \S+)?) {2,}(\S+)", ask(where, "show", "protocols"), re.M)
    return {name: (since, state) for name, since, state in rows}


def established(where: Path, count: int) -> bool:
    """Whether BIRD has exactly so many sessions and all of them are established."""
    states = [state for _, state in sessions(where).values()]
    return states == ["Established"] * count


def pid(node: ClusterNode) -> int:
    record = read_record(Path(node.router.own.run_dir, "children/bird.json"))
    return record.pid if record is not None and record.running else 0


def has_passwords() -> bool:
    """Whether this kernel has TCP MD5 passwords (CONFIG_TCP_MD5SIG)."""
    with socket.socket() as probe:
        address = struct.pack("=HH4s120x", socket.AF_INET, 0, socket.inet_aton("127.0.0.1"))
        try:
            probe.setsockopt(socket.IPPROTO_TCP, TCP_MD5SIG, address + struct.pack("=BBHI80s", 0, 0, 1, 0, b"x"))
        except OSError as failure:
            if failure.errno == errno.ENOPROTOOPT:
                return False
            raise
    return True


@contextmanager
def router(cluster: Cluster, password: str = "") -> Iterator[Path]:
    """BIRD in the namespace that joins the segments, with a session to each node; yields its control socket."""
    file, where = cluster.root / "router.conf", cluster.root / "router.ctl"
    secret = f'password "{password}";' if password else ""
    lines = [
        f'log "{cluster.root}/router.log" all;',
        "router id 10.89.0.1;",
        "protocol device {}",
        "protocol kernel { ipv4 { import none; export where source = RTS_BGP; }; }",
        f"protocol static {{ ipv4; route {OUTSIDE} blackhole; }}",
    ]
    for node in cluster.all:
        lines.append(
            f"protocol bgp node_{node.number} {{ local 10.89.{node.segment}.1 as {ROUTER_AS}; {secret}"
            f" neighbor {node.ip} as 64512; graceful restart on; connect delay time 1; connect retry time 5;"
            " error wait time 1, 10; ipv4 { import all; export all; next hop self; }; }"
        )
    file.write_text("\n".join(lines) + "\n")
    with netns.inside(cluster.fabric):
        bird = subprocess.Popen([BIRD, "-f", "-c", file, "-s", where], env={**os.environ})
    try:
        yield where
    finally:
        bird.kill()
        bird.wait()
