"""Clusters side by side on one machine have their own addresses and do not disturb each other."""

import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.e2e.clusters import PAIR, done, flows, own_name, run, running, topology, up
from tests.e2e.driver import Cluster
from tests.e2e.shared_clusters import NAMES

A, B = NAMES["pair"], own_name("side-b")


@pytest.fixture
def first(pair_cluster: Cluster) -> Cluster:
    assert pair_cluster.name == A
    return pair_cluster


def on_host(link: str) -> set[str]:
    """The addresses and routes that this machine has of a cluster's link."""
    result: set[str] = set()
    for word in ("-4 address", "-6 address", "-4 route", "-6 route"):
        arguments = ["ip", "-o", *word.split()]
        lines = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.splitlines()
        ours = [line.partition(": ")[2] or line for line in lines if link in line and "fe80" not in line]
        result |= {" ".join(line.split()[:3]) for line in ours}
    return result


def green(name: str) -> None:
    done("probe", "--name", name)
    done("probe", "--name", name, "--to", "svc/both")
    done("probe", "--name", name, "--from", "host", "--to", "svc/both")


def at_once(*options: tuple[str, ...]) -> list[subprocess.CompletedProcess[str]]:
    """The ends of ``podwire up`` for one node, of commands that begin together."""
    with ThreadPoolExecutor() as threads:
        return list(threads.map(lambda own: run("up", "--nodes", "1", *own), options))


def test_two_are_green_and_taking_one_down_leaves_the_other(first: Cluster) -> None:
    mine = topology(first).host_link
    before = on_host(mine)
    assert len(before) == 4
    with flows(first, [("one", "two")]) as (flow,):
        with running(B, "--nodes", "2", "--segments", "2", stdin=PAIR) as second:
            other = topology(second).host_link
            during = on_host(other)
            assert len(during) > len(before)
            green(A)
            green(B)
            # To ask for one again takes nothing away that is the other's.
            up(A)
            up(B)
            assert (on_host(mine), on_host(other)) == (before, during)
        assert (on_host(mine), on_host(other)) == (before, set())
        green(A)
    assert flow.problems == []
    assert A in run("status", "--name", B).stderr


def test_up_twice_at_once_makes_one_cluster(first: Cluster) -> None:
    try:
        ends = sorted((item.stderr, item.returncode) for item in at_once(("--name", B), ("--name", B)))
        assert sorted(status for _, status in ends) in ([0, 1], [0, 0])
        assert all(f"{B!r} is being changed by another podwire process" in text for text, status in ends if status)
        assert done("status", "--name", B).count("apiserver ") == 1
        green(A)
    finally:
        run("down", "--name", B)


def test_two_clusters_may_come_up_at_once(first: Cluster) -> None:
    names = [own_name("side-c"), own_name("side-d")]
    try:
        for item in at_once(*(("--name", name, "--probe") for name in names)):
            assert item.returncode == 0, item.stdout + item.stderr
        results = [Cluster(name, done("kubeconfig", "--name", name).strip()) for name in names]
        addresses = {str(entry.get("node", "node-1")["status"]["addresses"][0]) for entry in results}
        assert len(addresses) == 2
        green(A)
    finally:
        for name in names:
            run("down", "--name", name)
