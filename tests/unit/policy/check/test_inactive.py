import pytest
from tests.unit.policy.check.clusters import findings_of, ids, index, policy

from podwire.policy.check import inactive
from podwire.policy.check.checks import check
from podwire.policy.check.context import UnenforcedPolicy

CILIUM = UnenforcedPolicy(api_version="cilium.io/v2", kind="CiliumNetworkPolicy", name="shop/web", where="c.yaml:1")


def test_policies_that_files_define_twice() -> None:
    web = policy("shop/web", "podSelector: {matchLabels: {app: web}}")
    assert ids(inactive.check, web) == []
    assert ids(inactive.check, web, duplicates={"NetworkPolicy shop/web": "a.yaml:3"}) == [
        ("given-twice", "metadata.name")
    ]


def test_policies_in_audit_are_not_in_force() -> None:
    result = findings_of(
        inactive.check, policy("shop/web", "podSelector: {}", mode="audit"), policy("a", "", mode="audit")
    )
    assert [item[:2] for item in result] == [("in-audit", "metadata.annotations[podwire.io/mode]")] * 2
    assert result[0][2].startswith("it isolates no pod and drops nothing")
    assert result[1][2].startswith("it neither denies nor accepts nor passes")
    assert ids(inactive.check, policy("shop/web", "podSelector: {}", mode="enforce")) == []


def test_policies_of_another_kind() -> None:
    (result,) = inactive.check(index(unenforced=(CILIUM,)))
    assert str(result) == (
        "c.yaml:1: warning: CiliumNetworkPolicy shop/web kind: podwire neither enforces nor checks "
        "CiliumNetworkPolicy of cilium.io/v2: it has an effect only if another component of the cluster enforces it "
        "[not-enforced]"
    )


@pytest.mark.parametrize(
    ("version", "kind", "instead"),
    [
        ("policy.networking.k8s.io/v1alpha1", "AdminNetworkPolicy", "v1alpha2 with tier Admin has replaced it"),
        (
            "policy.networking.k8s.io/v1alpha1",
            "BaselineAdminNetworkPolicy",
            "v1alpha2 with tier Baseline has replaced it",
        ),
        ("extensions/v1beta1", "NetworkPolicy", "podwire reads networking.k8s.io/v1"),
        (
            "crd.antrea.io/v1beta1",
            "ClusterNetworkPolicy",
            "it has an effect only if another component of the cluster enforces it",
        ),
    ],
)
def test_old_kinds_name_their_replacement(version: str, kind: str, instead: str) -> None:
    old = UnenforcedPolicy(api_version=version, kind=kind, name="a", where="a.yaml:1")
    (result,) = inactive.check(index(unenforced=(old,)))
    assert result.text.endswith(instead)
    sentence = inactive.skipped_note(old)
    assert sentence.startswith(f"{kind} a in a.yaml:1 is skipped: podwire does not enforce {kind} of {version}; ")
    assert sentence.endswith(instead)


def test_it_can_be_ignored() -> None:
    meant = {"podwire.io/ignore": "not-enforced"}
    for annotations, count in (({}, 1), (meant, 0)):
        other = UnenforcedPolicy(
            **{**{f: getattr(CILIUM, f) for f in CILIUM.__struct_fields__}, "annotations": annotations}
        )
        created = index(unenforced=(other,))
        assert len([item for item in check(created.world, created.details) if item.id == "not-enforced"]) == count
