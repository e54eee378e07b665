"""The kinds of projectcalico.org/v3 have all fields of Calico, in the definitions and in the model alike."""

from typing import Any

import msgspec
import pytest

from podwire.local.addons.ensure import manifests
from podwire.model.bgp import BgpConfigurationSpec, BgpFilterSpec, BgpPeerSpec, FilterRule, IpPoolSpec

FIELDS: dict[str, tuple[type[msgspec.Struct], str]] = {
    "BGPConfiguration": (
        BgpConfigurationSpec,
        "asNumber bindMode communities ignoredInterfaces ipv4NormalRoutePriority ipv6NormalRoutePriority listenPort "
        "localWorkloadPeeringIPV4 localWorkloadPeeringIPV6 logSeverityScreen nodeMeshMaxRestartTime nodeMeshPassword "
        "nodeToNodeMeshEnabled prefixAdvertisements programClusterRoutes serviceClusterIPs serviceExternalIPs "
        "serviceLoadBalancerAggregation serviceLoadBalancerIPs",
    ),
    "BGPPeer": (
        BgpPeerSpec,
        "asNumber filters keepOriginalNextHop keepaliveTime localASNumber localWorkloadSelector maxRestartTime "
        "nextHopMode node nodeSelector numAllowedLocalASNumbers password peerIP peerSelector reachableBy "
        "reversePeering sourceAddress ttlSecurity",
    ),
    "BGPFilter": (BgpFilterSpec, "exportV4 exportV6 importV4 importV6"),
    "IPPool": (
        IpPoolSpec,
        "allowedUses assignmentMode blockSize cidr disableBGPExport disabled ipipMode namespaceSelector natOutgoing "
        "nodeSelector vxlanMode",
    ),
}
"""By kind: the struct of the model, and the fields of Calico 3.33."""
RULE = [
    *("action", "asPathPrefix", "cidr", "communities", "interface", "matchOperator"),
    *("operations", "peerType", "prefixLength", "priority", "source"),
]


def spec_of(kind: str) -> dict[str, Any]:
    """The fields of a kind in its definition."""
    for manifest in manifests(("bgp.yaml", "ippool.yaml"), "10.96.0.10", 1):
        body: Any = manifest.body
        if body["kind"] == "CustomResourceDefinition" and body["spec"]["names"]["kind"] == kind:
            schema = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
            fields: dict[str, Any] = schema["properties"]["spec"]["properties"]
            return fields
    raise AssertionError(kind)


@pytest.mark.parametrize("kind", FIELDS)
def test_kinds_have_the_fields_of_calico(kind: str) -> None:
    struct, names = FIELDS[kind]
    assert sorted(spec_of(kind)) == sorted(names.split())
    assert sorted(struct.__struct_encode_fields__) == sorted(names.split())


def test_rules_have_the_fields_of_calico() -> None:
    assert sorted(FilterRule.__struct_encode_fields__) == RULE
    for field, rules in spec_of("BGPFilter").items():
        assert sorted(rules["items"]["properties"]) == RULE, field
