"""Who stands behind an address."""

from pathlib import Path

from podwire.model.meta import key_of
from podwire.policy.world import owners, ports_of
from podwire.testing.policycases import read_cases

CASES = {case.name: case for case in read_cases(Path(__file__).parents[2] / "cases/policies")}
WORLD = CASES["without a policy everything passes"].world


def test_parties_have_names() -> None:
    names = {address: WORLD.party(address).name for address in ("10.180.0.2", "fd18::2", "192.168.99.2", "203.0.113.9")}
    assert names == {
        "10.180.0.2": "shop/db",
        "fd18::2": "shop/db",
        "192.168.99.2": "node n2",
        "203.0.113.9": "203.0.113.9",
    }
    assert WORLD.party("10.180.0.2").node == "n1"


def test_neither_ended_pods_nor_those_with_the_nodes_network_own_an_address() -> None:
    assert "192.168.99.2" not in owners(WORLD.pods)
    ended = CASES["a pod that ended is nobody, and its address may be another's"].world
    assert key_of(owners(ended.pods)["10.180.0.1"].metadata) == "shop/next"


def test_who_owns_an_address_does_not_depend_on_the_order() -> None:
    for name in ("an address that two pods list is that of the one that stays", "without a policy everything passes"):
        pods = CASES[name].world.pods
        assert owners(pods) == owners(tuple(reversed(pods)))


def test_namespaces_have_their_name_as_a_label() -> None:
    assert WORLD.labels_of("shop")["kubernetes.io/metadata.name"] == "shop"
    assert WORLD.labels_of("not-there") == {"kubernetes.io/metadata.name": "not-there"}


def test_ports_of_sidecars_count_and_those_of_init_containers_do_not() -> None:
    world = CASES["a named port is that of the destination, whatever its number there"].world
    pod = next(pod for pod in world.pods if key_of(pod.metadata) == "blog/web")
    assert [port.name for port in ports_of(pod)] == ["http", "mesh"]
