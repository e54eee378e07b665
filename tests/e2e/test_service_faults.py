"""A killed agent interrupts no Service, and changes made while the agent was dead are applied afterwards.

Connections are counted: new ones all the time, and some that stay. The client's node is ``node-1``.
"""

import json
import os
import signal
import socket
import time

import pytest
from tests.e2e.clusters import netns_of
from tests.e2e.connection_load import Load
from tests.e2e.driver import Cluster, eventually
from tests.e2e.handwritten_endpoints import (
    PODS,
    agent,
    another,
    answered,
    churn,
    generation,
    handwritten_service,
    in_force,
    load,
    set_endpoints,
    switch,
)

from podwire.kernel import netns


@pytest.fixture(scope="module")
def cluster(services_cluster: Cluster) -> Cluster:
    switch(services_cluster, "nftables")
    return services_cluster


def test_an_agent_killed_again_and_again_while_endpoints_change(cluster: Cluster) -> None:
    with handwritten_service(cluster, "busy", *PODS) as address, load(cluster, address) as flow:
        with churn(cluster, "busy"):
            for _ in range(3):
                killed = agent(cluster)
                os.kill(killed, signal.SIGKILL)
                another(cluster, killed)
                flow.go_on()
        set_endpoints(cluster, "busy", "two")
        since = time.monotonic()
        eventually(lambda: in_force(cluster))
        eventually(lambda: flow.answering(time.monotonic() - 0.3) == {"two"})
    assert flow.problems == []
    assert flow.repeated == 0
    assert flow.answering(since) >= {"two"}


def test_restarted_agent_removes_gone_services_and_keeps_connections(cluster: Cluster) -> None:
    with handwritten_service(cluster, "gone", "one") as gone, handwritten_service(cluster, "moved", "one") as moved:
        eventually(lambda: answered(cluster, gone) and answered(cluster, moved))
        with Load(netns_of(cluster, "client"), moved) as flow:
            with netns.inside(netns_of(cluster, "client")):
                talk = socket.create_connection((gone, 80), 3)
            with talk, talk.makefile("rb") as replies:
                killed = agent(cluster)
                os.kill(killed, signal.SIGSTOP)
                cluster.kubectl("delete", "service/gone", "endpointslice/gone-a")
                set_endpoints(cluster, "moved", "three")
                with handwritten_service(cluster, "new", "two") as new:
                    os.kill(killed, signal.SIGKILL)
                    another(cluster, killed)
                    eventually(lambda: in_force(cluster))
                    assert answered(cluster, new)
                    assert not answered(cluster, gone)
                talk.sendall(b"podwire-probe\n")
                assert json.loads(replies.readline())["pod"] == "one"
            eventually(lambda: flow.answering(time.monotonic() - 0.3) == {"three"})
    assert flow.problems == []


def test_a_restart_with_nothing_to_do_writes_nothing(cluster: Cluster) -> None:
    eventually(lambda: in_force(cluster))
    before = generation(cluster)
    with load(cluster, cluster.get("service", "web")["spec"]["clusterIP"]) as flow:
        for _ in range(2):
            killed = agent(cluster)
            os.kill(killed, signal.SIGKILL)
            another(cluster, killed)
            flow.go_on()
    assert (flow.problems, flow.repeated) == ([], 0)
    assert generation(cluster) == before
