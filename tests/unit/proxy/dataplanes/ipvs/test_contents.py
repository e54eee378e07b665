"""Changes of Services as what comes and goes."""

from collections.abc import Mapping

from tests.unit.proxy.dataplanes.ipvs.test_compile import FACTS, ONE, TWO, port

from podwire.proxy.dataplanes.ipvs.contents import Contents, IpvsDelta
from podwire.proxy.dataplanes.ipvs.layout import IpvsLayout
from podwire.proxy.servicemap import ResolvedPort

WEB, OTHER = "default/web", "default/other"


def contents(*elsewhere: str) -> Contents:
    return Contents(IpvsLayout("ip", FACTS, FACTS.addresses), elsewhere)


def summary(delta: IpvsDelta) -> list[str]:
    """A line for each thing."""
    return [
        *(f"server {key}" for key in delta.servers),
        *(f"bind {address}" for address in delta.bound),
        *(f"unbind {address}" for address in delta.unbound),
        *(f"add {item.name} {key}" for item in delta.added for key in sorted(item.elements)),
        *(f"del {item.name} {key}" for item in delta.removed for key in sorted(item.elements)),
        *(["rules"] if delta.rules else []),
    ]


def change(created: Contents, changed: Mapping[str, tuple[ResolvedPort, ...]]) -> list[str]:
    return summary(created.change(changed))


def test_endpoint_change_writes_one_virtual_server_and_one_element() -> None:
    created = contents()
    created.change({WEB: (port(cluster_endpoints=(ONE,)),)})
    assert change(created, {WEB: (port(),)}) == [
        "server -t 172.30.0.41:80",
        "add KUBE-LOOP-BACK 10.180.0.2,tcp:8080,10.180.0.2",
    ]
    assert change(created, {WEB: (port(),)}) == []
    assert change(created, {WEB: (port(cluster_endpoints=(TWO,)),)}) == [
        "server -t 172.30.0.41:80",
        "del KUBE-LOOP-BACK 10.180.0.1,tcp:8080,10.180.0.1",
    ]


def test_shared_address_stays_with_the_remaining_service() -> None:
    created = contents()
    created.change({WEB: (port(),)})
    other = port(service=OTHER, cluster_ip="172.30.0.42", external_ips=("203.0.113.7",))
    more = port(service="default/more", cluster_ip="172.30.0.43", external_ips=("203.0.113.7",), port=81)
    created.change({OTHER: (other,), "default/more": (more,)})
    lines = change(created, {OTHER: ()})
    assert "unbind 172.30.0.42" in lines and "unbind 203.0.113.7" not in lines
    assert not any("LOOP-BACK" in line for line in lines)
    assert "del KUBE-EXTERNAL-IP 203.0.113.7,tcp:80" in lines
    assert "unbind 203.0.113.7" in change(created, {"default/more": ()})


def test_everything_goes_with_the_last_service() -> None:
    created = contents()
    many = {WEB: (port(external_local=True, node_port=30080, external_ips=("203.0.113.7",)),)}
    created.change(many)
    assert list(created.addresses) == ["172.30.0.41", "203.0.113.7"]
    created.change({WEB: ()})
    assert (created.addresses, created.servers) == ((), {})
    assert not any(declared.elements for declared in created.sets())
    assert [str(ruleset) for ruleset in created.rulesets()] == [str(ruleset) for ruleset in contents().rulesets()]


def test_a_frontend_goes_to_the_service_that_waits_for_it() -> None:
    created = contents()
    created.change({WEB: (port(external_ips=("203.0.113.7",)),)})
    waiting = port(service=OTHER, cluster_ip="172.30.0.42", external_ips=("203.0.113.7",), cluster_endpoints=(TWO,))
    created.change({OTHER: (waiting,)})
    assert created.claims.waiting() == (OTHER,)
    key = next(key for key in created.servers if key.address == "203.0.113.7")
    assert len(created.servers[key].destinations) == 2
    lines = change(created, {WEB: ()})
    assert "server -t 203.0.113.7:80" in lines and "unbind 203.0.113.7" not in lines
    assert [destination.address for destination in created.servers[key].destinations] == ["10.180.0.2"]


def test_a_frontend_that_changes_hands_at_once() -> None:
    created = contents()
    created.change({WEB: (port(external_ips=("203.0.113.7",)),)})
    taking = port(service=OTHER, cluster_ip="172.30.0.42", external_ips=("203.0.113.7",), cluster_endpoints=(TWO,))
    delta = created.change({OTHER: (taking,), WEB: (port(),)})
    assert "203.0.113.7" not in (*delta.bound, *delta.unbound)
    key = next(key for key in delta.servers if key.address == "203.0.113.7")
    assert [destination.address for destination in created.servers[key].destinations] == ["10.180.0.2"]


def test_an_address_of_the_node_is_not_bound() -> None:
    created = contents("192.168.98.1")
    lines = change(created, {WEB: (port(external_ips=("192.168.98.1",)),)})
    assert "server -t 192.168.98.1:80" in lines
    assert not any(line.startswith(("bind 192", "add KUBE-IPVS-IPS 192")) for line in lines)
    assert created.addresses == ("172.30.0.41",)


def test_only_frontends_of_policy_local_change_rules() -> None:
    created = contents()
    assert "rules" not in change(created, {WEB: (port(node_port=30080),)})
    assert "rules" in change(created, {WEB: (port(node_port=30080, external_local=True),)})
    assert "rules" not in change(created, {WEB: (port(node_port=30080, external_local=True, local_endpoints=()),)})
