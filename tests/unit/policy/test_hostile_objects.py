"""Objects behind the API's validation: no policy, Pod, Node or Namespace ends the enforcement of the others."""

from typing import Any

import msgspec
import pytest
from tests.fakes.hostile_objects import NAMESPACE, NODE, POD, POLICY, hostile

from podwire.cluster.ranges import ClusterRanges
from podwire.kube.decode import decode_object
from podwire.model.meta import Object, key_of
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.model.policy import ClusterNetworkPolicy, NetworkPolicy
from podwire.policy import registry
from podwire.policy.compile import Compiler
from podwire.policy.dataplane import PolicyFacts
from podwire.policy.tracing import open_tracing
from podwire.trace.packet import LocalAddresses

_PEERS = [
    {"namespaces": {"matchLabels": {"team": "a"}}},
    {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "web"}}}},
]
_PORT, _RANGE = {"destinationPort": {"number": 80}}, {"destinationPort": {"range": {"start": 80, "end": 90}}}
CLUSTER_POLICY: dict[str, Any] = {
    "metadata": {"name": "guard", "annotations": {"podwire.io/mode": "enforce", "podwire.io/log": "drops"}},
    "spec": {
        "tier": "Admin",
        "priority": 5,
        "subject": {"pods": {"namespaceSelector": {"matchLabels": {"team": "a"}}, "podSelector": {}}},
        "ingress": [{"name": "in", "action": "Deny", "from": _PEERS, "protocols": [{"tcp": _PORT}]}],
        "egress": [
            {
                "name": "out",
                "action": "Accept",
                "to": [{"networks": ["10.0.0.0/8", "2001:db8::/32"]}, {"nodes": {"matchLabels": {"a": "b"}}}],
                "protocols": [{"udp": _RANGE}, {"destinationNamedPort": "web"}],
            }
        ],
    },
}
MACHINE = LocalAddresses(addresses=frozenset(("192.168.99.1",)))
KINDS: dict[str, tuple[dict[str, Any], type[Any]]] = {
    "policy": (POLICY, NetworkPolicy),
    "cluster policy": (CLUSTER_POLICY, ClusterNetworkPolicy),
    "pod": (POD, Pod),
    "node": (NODE, Node),
    "namespace": (NAMESPACE, Object),
}


@pytest.mark.parametrize("changed", KINDS)
def test_policies_are_compiled_whatever_one_object_has(changed: str) -> None:
    """Every object is compiled; of those that lead to the same profiles, the rules of one are planned."""
    objects = {name: decode_object(msgspec.json.encode(written), kind) for name, (written, kind) in KINDS.items()}
    tracings = [tracing for mode in registry.TRACERS if (tracing := open_tracing(mode)) is not None]
    assert tracings
    planned: set[str] = set()
    for label, item in hostile(*KINDS[changed]):
        now, compiler, ranges = objects | {changed: item}, Compiler("n1"), ClusterRanges()
        try:
            compiler.set_namespace("default", now["namespace"].metadata.labels)
            compiler.set_node("n1", now["node"])
            compiler.set_pod("default/web-0", now["pod"])
            compiler.set_policy(key_of(now["policy"].metadata), now["policy"])
            compiler.set_cluster_policy(now["cluster policy"].metadata.name, now["cluster policy"])
            compiler.flush()
            ranges.follow("n1", now["node"])
            facts = PolicyFacts(
                addresses=now["node"].internal_ips, pod_ranges=now["node"].pod_cidrs, cluster_ranges=ranges.ranges
            )
            enforced = [(profile.key, profile.rules, profile.peers.hosts) for profile in compiler.profiles.values()]
            content = repr((compiler.pods, enforced, facts))
            for tracing in tracings if content not in planned else ():
                tracing.planned(compiler, {"default/web-0": "veth0"}, facts, MACHINE)
            planned.add(content)
        except Exception as failure:
            raise AssertionError(label) from failure
