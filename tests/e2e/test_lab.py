"""``podwire lab``: links that are cut, lossy or narrow, and healed again."""

import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.clusters import address_of, done, flows, in_node, own_name, run, running, server, topology
from tests.e2e.driver import Cluster, eventually

from podwire.kernel import netns
from podwire.local import builds
from podwire.local.briefs import processes_of
from podwire.local.config import recall_config
from podwire.local.rollout.components import Swapper, every_build
from podwire.runtime.childrecord import read_record

NAME = own_name("lab")
CONFIG = """
nodes: 4
segments: 2
routing: {backend: bgp}
links: {node-4: {mtu: 1400}}
"""


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """node-1 and node-3 are on one segment, node-2 and node-4 on the other."""
    config = tmp_path_factory.mktemp("config") / "cluster.yaml"
    config.write_text(CONFIG)
    with running(NAME, "--config", str(config), stdin=server("near", "node-1") + server("far", "node-2")) as cluster:
        yield cluster


@pytest.fixture
def healed(wide: Cluster) -> Iterator[Cluster]:
    yield wide
    lab("heal")


def lab(*arguments: str) -> list[str]:
    return done("lab", arguments[0], "--name", NAME, *arguments[1:]).splitlines()


def arrived(cluster: Cluster, source: str, target: str, count: int) -> int:
    """How many of ``count`` datagrams from node to node arrive; the rules are in force when a command has returned."""
    address = str(topology(cluster).node(int(target.partition("-")[2])).address)
    with netns.inside(str(topology(cluster).netns(target))):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with netns.inside(str(topology(cluster).netns(source))):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with receiver, sender:
        receiver.bind((address, 0))
        receiver.settimeout(2)
        for _ in range(count):
            sender.sendto(b"x", receiver.getsockname())
        received = 0
        with contextlib.suppress(TimeoutError):
            while received < count:
                receiver.recv(10)
                received += 1
    return received


def hears(cluster: Cluster, source: str, target: str) -> bool:
    return arrived(cluster, source, target, 3) > 0


def mtu(cluster: Cluster, node: str) -> int:
    (link,) = json.loads(in_node(cluster, node, "ip", "-j", "link", "show", "eth0"))
    return int(link["mtu"])


def test_cut_node_receives_no_packet_until_it_is_healed(healed: Cluster) -> None:
    assert lab("cut", "node-3") == ["node-3: cut", "node-4: MTU 1400"]
    assert not hears(healed, "node-1", "node-3") and not hears(healed, "node-3", "node-2")
    assert hears(healed, "node-1", "node-2")
    assert "link node-3: cut" in run("status", "--name", NAME).stdout
    assert run("state", "switch", "--name", NAME, "--diff").returncode == 0
    assert lab("heal", "node-3") == ["node-4: MTU 1400"]
    eventually(lambda: hears(healed, "node-1", "node-3") and hears(healed, "node-3", "node-2"))


def test_a_pair_is_cut_from_each_other_alone(healed: Cluster) -> None:
    lab("cut", "node-3", "node-1")
    assert not hears(healed, "node-1", "node-3") and not hears(healed, "node-3", "node-1")
    assert hears(healed, "node-3", "node-2") and hears(healed, "node-1", "node-4")
    lab("heal", "node-1")
    eventually(lambda: hears(healed, "node-1", "node-3"))


def test_a_segment_is_cut_from_the_router(healed: Cluster) -> None:
    lab("cut", "segment-1")
    assert hears(healed, "node-2", "node-4") and not hears(healed, "node-1", "node-2")


def test_bgp_carries_pods_across_the_router(healed: Cluster) -> None:
    """The router learns the pods' networks from the nodes; no packet is encapsulated, and no address translated."""
    with flows(healed, [("near", "far"), ("far", "near")]) as clients:
        for client in clients:
            client.go_on(3)
    assert [client.problems for client in clients] == [[], []]
    (route,) = json.loads(in_node(healed, "router", "ip", "-j", "route", "get", address_of(healed, "far")))
    assert route["gateway"] == str(topology(healed).node(2).address)
    lab("cut", "segment-1")
    assert not hears(healed, "node-1", "node-2")
    lab("heal")
    eventually(lambda: run("probe", "--name", NAME).returncode == 0)


def test_an_adopted_router_is_started_again(healed: Cluster, tmp_path: Path) -> None:
    """The supervisor of an upgrade adopts all processes, the router's BIRD too, whose routes stay in the kernel."""
    lab_topology = topology(healed)
    config = recall_config(lab_topology)
    assert config is not None

    def router() -> int:
        record = read_record(Path(lab_topology.run, "processes", "router.json"))
        return record.pid if record is not None and record.running else 0

    running_builds = every_build([process.name for process in processes_of(lab_topology)], builds.own())
    with flows(healed, [("near", "far")]) as (client,):
        Swapper(lab_topology, config, tmp_path / "backup").start_supervisor(builds.own(), running_builds)
        first = router()
        assert first
        os.kill(first, signal.SIGKILL)
        eventually(lambda: router() not in (0, first))
        client.go_on()
    assert client.problems == []


def test_a_lossy_link_loses_some_frames(healed: Cluster) -> None:
    lab("loss", "node-3", "50")
    assert 0 < arrived(healed, "node-1", "node-3", 200) < 200


def test_conditions_stay_when_the_cluster_changes(healed: Cluster) -> None:
    lab("mtu", "node-3", "1300")
    lab("cut", "host")
    assert (mtu(healed, "node-3"), mtu(healed, "node-4"), mtu(healed, "node-1")) == (1300, 1400, 1500)
    lab("heal", "host")
    done("up", "--name", NAME)
    assert mtu(healed, "node-3") == 1300
    shown = json.loads(done("lab", "show", "--name", NAME, "-o", "json"))
    assert shown == {"links": {"node-3": {"mtu": 1300}, "node-4": {"mtu": 1400}}, "pairs": []}
    lab("heal")
    assert (mtu(healed, "node-3"), mtu(healed, "node-4")) == (1500, 1400)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ("cut", "node-9"),
            "'node-9' is not a station; expected one of host, node-1 to node-4, segment-0 to segment-1",
        ),
        (("cut", "node-1", "node-2"), "node-1 is on segment-0 and node-2 on segment-1"),
        (("loss", "node-1", "120"), "links.node-1.lossPercent: 120: expected 0 to 100"),
        (("loss", "node-1", "much"), "'much' is not a valid float"),
        (("mtu", "node-1", "100"), "links.node-1.mtu: 100: expected 1280 to 9000"),
        (("heal", "router"), "'router' is not a station"),
    ],
)
def test_wrong_input_changes_nothing(wide: Cluster, arguments: tuple[str, ...], problem: str) -> None:
    refused = run("lab", arguments[0], "--name", NAME, *arguments[1:])
    assert (refused.returncode, "Traceback" in refused.stderr) == (2, False)
    assert problem in refused.stderr
    assert lab("show") == ["node-4: MTU 1400"]


def test_a_delay_needs_netem(healed: Cluster) -> None:
    """With netem the delay holds, without it the earlier conditions do, and the error says what is missing."""
    asked = run("lab", "delay", "--name", NAME, "node-3", "100")
    if asked.returncode == 0:
        assert "node-3: delay 100 ms" in asked.stdout
        assert "netem" in in_node(healed, "node-3", "tc", "qdisc", "show", "dev", "eth0")
    else:
        assert (asked.returncode, asked.stderr) == (
            1,
            "podwire: delays need netem, which this kernel lacks (CONFIG_NET_SCH_NETEM)\n",
        )
        assert lab("show") == ["node-4: MTU 1400"]
    assert hears(healed, "node-1", "node-3")
