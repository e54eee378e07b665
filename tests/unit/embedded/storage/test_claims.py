"""The claims of a pod."""

import msgspec

from podwire.embedded.storage.claims import claims_of, ephemeral_claims
from podwire.model.pod import Pod

TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": {"accessModes": ["ReadWriteOnce"]}}
VOLUMES = [
    {"name": "data", "persistentVolumeClaim": {"claimName": "db"}},
    {"name": "scratch", "ephemeral": {"volumeClaimTemplate": TEMPLATE}},
    {"name": "tmp", "emptyDir": {}},
]
POD = msgspec.convert({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"volumes": VOLUMES}}, Pod)


def test_claims_are_named_in_the_order_of_volumes() -> None:
    assert claims_of(POD) == ("db", "p-scratch")


def test_claim_of_an_ephemeral_volume_belongs_to_its_pod() -> None:
    (created,) = ephemeral_claims(POD)
    assert created["metadata"]["name"] == "p-scratch"
    assert created["metadata"]["labels"] == {"a": "b"}
    assert created["metadata"]["ownerReferences"][0]["uid"] == "u"
    assert created["spec"] == TEMPLATE["spec"]
