"""Policies as the API sends them."""

import msgspec
import pytest

from podwire.model.policy import ClusterNetworkPolicy, NetworkPolicy, PolicyPort

SPECS = [
    ("{}", ("Ingress",)),
    ('{"ingress": []}', ("Ingress",)),
    ('{"egress": []}', ("Ingress",)),
    ('{"egress": [{}]}', ("Ingress", "Egress")),
    ('{"policyTypes": ["Egress"]}', ("Egress",)),
    ('{"policyTypes": ["Ingress"], "egress": [{}]}', ("Ingress",)),
]


@pytest.mark.parametrize(("spec", "types"), SPECS)
def test_types_of_a_policy(spec: str, types: tuple[str, ...]) -> None:
    policy = msgspec.json.decode(f'{{"spec": {spec}}}', type=NetworkPolicy)
    assert policy.spec.types == types


def test_words_that_python_keeps_for_itself() -> None:
    text = '{"spec": {"ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]}]}}'
    policy = msgspec.json.decode(text, type=NetworkPolicy)
    block = policy.spec.ingress[0].peers[0].ip_block
    assert block is not None
    assert (block.cidr, block.excepted) == ("10.0.0.0/8", ("10.1.0.0/16",))


def test_ports_are_numbers_names_or_all() -> None:
    ports = msgspec.json.decode('[{}, {"port": 80, "endPort": 90}, {"port": "http"}]', type=tuple[PolicyPort, ...])
    assert [port.port for port in ports] == [None, 80, "http"]
    assert ports[1].end_port == 90


def test_unknown_peers_and_protocols_are_marked_unknown() -> None:
    text = (
        '{"spec": {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}, "egress": [{"action": "Deny",'
        ' "to": [{"domainNames": ["example.com"]}, {"nodes": {}}], "protocols": [{"quic": {}}, {"tcp": {}}]}]}}'
    )
    (rule,) = msgspec.json.decode(text, type=ClusterNetworkPolicy).spec.egress
    assert [peer.known for peer in rule.peers] == [False, True]
    assert [protocol.known for protocol in rule.protocols] == [False, True]
