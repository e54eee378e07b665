"""The pods whose connections a change of EgressPolicies concerns."""

from ipaddress import ip_address, ip_network

from podwire.routing.egress.flows import outdated_pods
from podwire.routing.egress.holder import EgressAssignment


def assignment(*pods: str, address: str = "192.0.2.7", node: str = "a", cidr: str = "") -> EgressAssignment:
    return EgressAssignment(
        name="out",
        pods=pods,
        destinations=(ip_network(cidr),) if cidr else (),
        excluded=(),
        addresses=(ip_address(address),),
        node=node,
    )


def test_pods_of_changed_policies_alone_are_concerned() -> None:
    before = (assignment("10.244.0.2", "10.244.0.3"),)
    assert not any(outdated_pods(before, (assignment("10.244.0.2", "10.244.0.3", node="b"),)))
    pods = outdated_pods(before, (assignment("10.244.0.2", "10.244.0.4"),))
    assert pods.selected == {"10.244.0.4"} and pods.released == {"10.244.0.3"}
    for changed in (assignment("10.244.0.2", address="192.0.2.8"), assignment("10.244.0.2", cidr="198.51.100.0/24")):
        assert outdated_pods(before, (changed,)).selected == {"10.244.0.2"}
