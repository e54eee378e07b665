"""Objects behind the API's validation: no Service, Pod or Node ends what makes slices and routes of the others."""

from typing import Any

import msgspec
import pytest
from tests.fakes.hostile_objects import NODE, POD, SERVICE, SLICE, hostile

from podwire.controllers.endpointslice import mirror, zones
from podwire.controllers.endpointslice.endpoints import address_types, desired
from podwire.controllers.endpointslice.plan import of_service, plan
from podwire.controllers.service.plan import claim, need, status, wants
from podwire.kube.decode import decode_object
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.model.service import EndpointSlice, Service
from podwire.routing.nodes import peer_of

KINDS: dict[str, tuple[dict[str, Any], type[Any]]] = {
    "service": (SERVICE, Service),
    "pod": (POD, Pod),
    "node": (NODE, Node),
    "slice": (SLICE, EndpointSlice),
}


@pytest.mark.parametrize("changed", KINDS)
def test_slices_are_planned_whatever_one_object_has(changed: str) -> None:
    objects = {name: decode_object(msgspec.json.encode(written), kind) for name, (written, kind) in KINDS.items()}
    for label, item in hostile(*KINDS[changed]):
        try:
            _plan(**(objects | {changed: item}))
        except Exception as failure:
            raise AssertionError(label) from failure


def _plan(service: Service, pod: Pod, node: Node, slice: EndpointSlice) -> None:  # noqa: A002
    nodes = {"n1": node, "n2": node}
    expected, _ = zones.with_hints(desired(service, [pod], nodes), nodes)
    families = address_types(service)
    mirror.render(service, expected, (*families, "")[0])
    plan(of_service(service), expected, [slice], families, "")
    need(service, {})
    wants(service)
    claim(service, "balancer")
    status(service, ())
    peer_of(node)
