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
        *(f"add {one.name} {key}" for one in delta.added for key in sorted(one.elements)),
        *(f"del {one.name} {key}" for one in delta.removed for key in sorted(one.elements)),
        *(["rules"] if delta.rules else []),
    ]


def change(made: Contents, changed: Mapping[str, tuple[ResolvedPort, ...]]) -> list[str]:
    return summary(made.change(changed))


def test_endpoint_change_writes_one_virtual_server_and_one_element() -> None:
    made = contents()
    made.change({WEB: (port(cluster_endpoints=(ONE,)),)})
    assert change(made, {WEB: (port(),)}) == [
        "server -t 172.30.0.41:80",
        "add KUBE-LOOP-BACK 10.180.0.2,tcp:8080,10.180.0.2",
    ]
    assert change(made, {WEB: (port(),)}) == []
    assert change(made, {WEB: (port(cluster_endpoints=(TWO,)),)}) == [
        "server -t 172.30.0.41:80",
        "del KUBE-LOOP-BACK 10.180.0.1,tcp:8080,10.180.0.1",
    ]


def test_shared_address_stays_with_the_remaining_service() -> None:
    made = contents()
    made.change({WEB: (port(),)})
    other = port(service=OTHER, cluster_ip="172.30.0.42", external_ips=("203.0.113.7",))
    more = port(service="default/more", cluster_ip="172.30.0.43", external_ips=("203.0.113.7",), port=81)
    made.change({OTHER: (other,), "default/more": (more,)})
    lines = change(made, {OTHER: ()})
    assert "unbind 172.30.0.42" in lines and "unbind 203.0.113.7" not in lines
    assert not any("LOOP-BACK" in line for line in lines)
    assert "del KUBE-EXTERNAL-IP 203.0.113.7,tcp:80" in lines
    assert "unbind 203.0.113.7" in change(made, {"default/more": ()})


def test_everything_goes_with_the_last_service() -> None:
    made = contents()
    many = {WEB: (port(external_local=True, node_port=30080, external_ips=("203.0.113.7",)),)}
    made.change(many)
    assert list(made.addresses) == ["172.30.0.41", "203.0.113.7"]
    made.change({WEB: ()})
    assert (made.addresses, made.servers) == ((), {})
    assert not any(one.elements for one in made.sets())
    assert [str(each) for each in made.rulesets()] == [str(each) for each in contents().rulesets()]


def test_a_frontend_goes_to_the_service_that_waits_for_it() -> None:
    made = contents()
    made.change({WEB: (port(external_ips=("203.0.113.7",)),)})
    waiting = port(service=OTHER, cluster_ip="172.30.0.42", external_ips=("203.0.113.7",), cluster_endpoints=(TWO,))
    made.change({OTHER: (waiting,)})
    assert made.claims.waiting() == (OTHER,)
    key = next(key for key in made.servers if key.address == "203.0.113.7")
    assert len(made.servers[key].destinations) == 2
    lines = change(made, {WEB: ()})
    assert "server -t 203.0.113.7:80" in lines and "unbind 203.0.113.7" not in lines
    assert [each.address for each in made.servers[key].destinations] == ["10.180.0.2"]


def test_a_frontend_that_changes_hands_at_once() -> None:
    made = contents()
    made.change({WEB: (port(external_ips=("203.0.113.7",)),)})
    taking = port(service=OTHER, cluster_ip="172.30.0.42", external_ips=("203.0.113.7",), cluster_endpoints=(TWO,))
    delta = made.change({OTHER: (taking,), WEB: (port(),)})
    assert "203.0.113.7" not in (*delta.bound, *delta.unbound)
    key = next(key for key in delta.servers if key.address == "203.0.113.7")
    assert [each.address for each in made.servers[key].destinations] == ["10.180.0.2"]


def test_an_address_of_the_node_is_not_bound() -> None:
    made = contents("192.168.98.1")
    lines = change(made, {WEB: (port(external_ips=("192.168.98.1",)),)})
    assert "server -t 192.168.98.1:80" in lines
    assert not any(line.startswith(("bind 192", "add KUBE-IPVS-IPS 192")) for line in lines)
    assert made.addresses == ("172.30.0.41",)


def test_only_frontends_of_policy_local_change_rules() -> None:
    made = contents()
    assert "rules" not in change(made, {WEB: (port(node_port=30080),)})
    assert "rules" in change(made, {WEB: (port(node_port=30080, external_local=True),)})
    assert "rules" not in change(made, {WEB: (port(node_port=30080, external_local=True, local_endpoints=()),)})
