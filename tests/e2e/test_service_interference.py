"""Interference with Services: the API is away, the kernel refuses rules, others delete rules, a storm of changes.

Connections are counted: new ones all the time, and some that stay. The client's node is ``node-1``.
"""

import asyncio
import ctypes
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.clusters import address_of, in_node
from tests.e2e.connection_load import Load
from tests.e2e.driver import NOTICED_S, Cluster, eventually
from tests.e2e.handwritten_endpoints import (
    PODS,
    agent,
    answered,
    api,
    handwritten_service,
    in_force,
    load,
    piece,
    set_endpoints,
    switch,
)

from podwire.kube.client import Client
from podwire.kube.resources import ENDPOINTSLICES

_LIBC = ctypes.CDLL(None, use_errno=True)
_PIDFD_GETFD = 438
_NETLINK_NETFILTER = 12


@pytest.fixture(scope="module")
def cluster(services_cluster: Cluster) -> Cluster:
    switch(services_cluster, "nftables")
    return services_cluster


@contextmanager
def away(cluster: Cluster) -> Iterator[None]:
    """Cuts the first node off from the API, in both directions."""
    rules = " ".join(
        f"chain {hook} {{ type filter hook {hook} priority 0; tcp {port} 6443 drop; }};"
        for hook, port in (("input", "sport"), ("output", "dport"))
    )
    in_node(cluster, "node-1", "nft", f"table ip away {{ {rules} }}")
    try:
        yield
    finally:
        in_node(cluster, "node-1", "nft", "delete", "table", "ip", "away")


def asked(flow: Load) -> set[str]:
    """The pods that answer the next hundred connections."""
    since = time.monotonic()
    flow.go_on(100)
    return flow.answering(since)


def test_a_node_without_the_api_goes_on_and_catches_up(cluster: Cluster) -> None:
    with (
        handwritten_service(cluster, "far", "one", "two") as address,
        handwritten_service(cluster, "leaving", "one") as leaving,
    ):
        eventually(lambda: answered(cluster, leaving))
        with load(cluster, address) as flow:
            with away(cluster):
                set_endpoints(cluster, "far", "three")
                cluster.kubectl("delete", "service/leaving", "endpointslice/leaving-a")
                assert asked(flow) == {"one", "two"}
                assert answered(cluster, leaving)
                killed = agent(cluster)
                os.kill(killed, signal.SIGKILL)
                eventually(lambda: agent(cluster) != killed)
                time.sleep(3)
                assert asked(flow) == {"one", "two"}
                assert answered(cluster, leaving)
            eventually(lambda: in_force(cluster))
            eventually(lambda: flow.answering(time.monotonic() - 0.3) == {"three"})
            assert not answered(cluster, leaving)
    assert (flow.problems, flow.repeated) == ([], 0)


def netfilter_sockets(pid: int) -> list[socket.socket]:
    """Another process's nfnetlink sockets, as descriptors of this one."""
    result = []
    handle = os.pidfd_open(pid)
    try:
        for name in Path(f"/proc/{pid}/fd").iterdir():
            number = _LIBC.syscall(_PIDFD_GETFD, handle, int(name.name), 0)
            if number < 0:
                continue
            try:
                sock = socket.socket(fileno=number)
            except OSError:
                os.close(number)
                continue
            if (sock.family, sock.proto) == (socket.AF_NETLINK, _NETLINK_NETFILTER):
                result.append(sock)
            else:
                sock.close()
    finally:
        os.close(handle)
    return result


@contextmanager
def refusing(cluster: Cluster) -> Iterator[None]:
    """Makes the kernel refuse the rules of the first node's agent: its nfnetlink sockets are connected to no kernel."""
    sockets = netfilter_sockets(agent(cluster))
    assert sockets
    for sock in sockets:
        sock.connect((0x7FFFFFF0, 0))
    try:
        yield
    finally:
        for sock in sockets:
            sock.connect((0, 0))
            sock.close()


def events(cluster: Cluster, reason: str) -> list[Any]:
    selector = f"involvedObject.kind=Node,involvedObject.name=node-1,reason={reason}"
    items: list[Any] = cluster.get("events", "-A", "--field-selector", selector)["items"]
    return items


def test_refused_rules_leave_the_last_good_rules_in_force(cluster: Cluster) -> None:
    with handwritten_service(cluster, "last", "one") as address, load(cluster, address) as flow:
        with refusing(cluster):
            set_endpoints(cluster, "last", "two")
            (event,) = eventually(lambda: events(cluster, "ServicesNotProgrammed"))
            assert event["type"] == "Warning"
            assert "Services stay as they were" in event["message"]
            failures = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total"
            assert metric(cluster, failures) > 0
            assert asked(flow) == {"one"}
        eventually(lambda: flow.answering(time.monotonic() - 0.3) == {"two"})
        eventually(lambda: in_force(cluster))
    assert (flow.problems, flow.repeated) == ([], 0)


def metric(cluster: Cluster, name: str) -> float:
    """The largest value of a metric of the first node's agent, over all labels."""
    text = in_node(cluster, "node-1", "curl", "-s", "http://127.0.0.1:9440/metrics")
    return max(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? ([0-9.e+-]+)$", text, re.MULTILINE))


def test_flushed_rules_are_restored_at_once(cluster: Cluster) -> None:
    with handwritten_service(cluster, "flushed", "one", "two") as address, load(cluster, address) as flow:
        for _ in range(5):
            in_node(cluster, "node-1", "nft", "flush", "ruleset")
            # What comes between the flush and the agent finds no rules and no translation: packets of that moment go to
            # the cluster address itself, where nobody is. How many do says how busy the machine is.
            eventually(lambda: answered(cluster, address), within=NOTICED_S)
            flow.go_on(within=120)
        eventually(lambda: in_force(cluster))
        # Of a connection that was under way in a gap, the kernel may have missed too much to go on with it.
        flow.come_to_an_end()
        failed = len(flow.problems)
        flow.go_on(200)
        assert len(flow.problems) == failed


def storm(cluster: Cluster, name: str, changes: int) -> None:
    """Changes the endpoints of a Service so often, without a pause, and makes the pod ``three`` the last of them."""
    addresses = [address_of(cluster, pod) for pod in PODS]

    async def work(client: Client) -> None:
        turns = iter(range(changes))

        async def write() -> None:
            for turn in turns:
                await client.update(ENDPOINTSLICES, piece(name, [addresses[turn % 3]]), "default", name=f"{name}-a")

        await asyncio.gather(*(write() for _ in range(16)))

    api(cluster, work)
    set_endpoints(cluster, name, "three")


def test_a_storm_ends_right_and_commits_leave_time_to_others(cluster: Cluster) -> None:
    spent = "kubeproxy_sync_proxy_rules_duration_seconds_sum"
    with handwritten_service(cluster, "storm", *PODS) as address, load(cluster, address) as flow:
        begun, before = time.monotonic(), metric(cluster, spent)
        storm(cluster, "storm", 1000)
        eventually(lambda: in_force(cluster))
        eventually(lambda: flow.answering(time.monotonic() - 0.3) == {"three"})
        # A commit is followed by a rest of four times its duration, so this holds on slow machines, too; a quarter in
        # place of a fifth, since the rest ends after a second.
        assert metric(cluster, spent) - before < (time.monotonic() - begun) / 4
    assert (flow.problems, flow.repeated) == ([], 0)


def test_changes_that_arrive_together_are_committed_together(cluster: Cluster) -> None:
    """The agent sleeps while the changes are made: how fast they are made has no part in the number of commits."""
    commits, changes = "kubeproxy_sync_proxy_rules_duration_seconds_count", 500
    with handwritten_service(cluster, "late", *PODS) as address, load(cluster, address) as flow:
        begun = metric(cluster, commits)
        asleep = agent(cluster)
        os.kill(asleep, signal.SIGSTOP)
        try:
            storm(cluster, "late", changes)
        finally:
            os.kill(asleep, signal.SIGCONT)
        eventually(lambda: in_force(cluster))
        eventually(lambda: flow.answering(time.monotonic() - 0.3) == {"three"})
    assert (flow.problems, flow.repeated) == ([], 0)
    assert agent(cluster) == asleep
    assert 0 < metric(cluster, commits) - begun < changes / 10
