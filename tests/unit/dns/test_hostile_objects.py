"""Objects behind the API's validation: no Service, EndpointSlice or Pod ends the zone of the others."""

from typing import Any

import msgspec
import pytest
from tests.fakes.hostile_objects import POD, SERVICE, SLICE, hostile

from podwire.dns.index import RecordIndex
from podwire.kube.decode import decode_object
from podwire.model.pod import Pod
from podwire.model.service import EndpointSlice, Service

KINDS: dict[str, tuple[dict[str, Any], type[Any]]] = {
    "service": (SERVICE, Service),
    "slice": (SLICE, EndpointSlice),
    "pod": (POD, Pod),
}


@pytest.mark.parametrize("changed", KINDS)
def test_records_are_planned_whatever_one_object_has(changed: str) -> None:
    objects = {name: decode_object(msgspec.json.encode(written), kind) for name, (written, kind) in KINDS.items()}
    for label, item in hostile(*KINDS[changed]):
        now, index = objects | {changed: item}, RecordIndex(pod_names=True)
        try:
            index.set_service("default/web", now["service"], 1)
            index.set_slice("default/web-1", now["slice"], 1)
            index.set_pod("default/web-0", now["pod"])
        except Exception as failure:
            raise AssertionError(label) from failure
