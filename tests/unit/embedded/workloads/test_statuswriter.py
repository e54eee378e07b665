"""Status patches name a version where they replace conditions."""

from podwire.embedded.workloads.statuswriter import status_body
from podwire.model.meta import ObjectMeta


def test_patch_of_conditions_names_its_version() -> None:
    meta = ObjectMeta(name="a", uid="u", resource_version="7")
    assert status_body(meta, {"replicas": 1}) == {"metadata": {"uid": "u"}, "status": {"replicas": 1}}
    assert status_body(meta, {"conditions": []})["metadata"] == {"uid": "u", "resourceVersion": "7"}
