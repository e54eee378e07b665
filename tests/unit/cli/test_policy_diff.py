"""``podwire policy diff`` on files, and what the files mean for a cluster that runs."""

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from tests.unit.policy.diff.worlds import world

from podwire.cli.main import root
from podwire.cli.policy_diff import Sides, combined
from podwire.errors import ConfigError
from podwire.model.meta import Object, ObjectMeta

PODS = """
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
spec: {containers: [{name: c, image: i}]}
"""
POLICY = """apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: web}}}]
    ports: [{port: 5432}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, number in (("old", 5432), ("new", 5433)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.yaml").write_text(POLICY.replace("5432", str(number)))
    (tmp_path / "pods.yaml").write_text(PODS)
    return tmp_path


def diff(folder: Path, *arguments: str) -> Result:
    positions = [str(folder / word) if (folder / word).exists() else word for word in arguments]
    return CliRunner().invoke(root, ["policy", "diff", *positions], catch_exceptions=False, standalone_mode=False)


def test_a_change(folder: Path) -> None:
    result = diff(folder, "old", "new", "-f", "pods.yaml")
    assert result.return_value == 1
    assert result.output.splitlines() == [
        "Pod shop/web -> Pod shop/db",
        "  now denied: TCP 5432",
        f"    before: allowed by shop/db ingress 0 ({folder}/old/policy.yaml:7)",
        "    after:  denied: no ingress rule of shop/db allows it",
        "  now allowed: TCP 5433",
        "    before: denied: no ingress rule of shop/db allows it",
        f"    after:  allowed by shop/db ingress 0 ({folder}/new/policy.yaml:7)",
        "1 pair now denied, 1 pair now allowed",
    ]


def test_no_change(folder: Path) -> None:
    (folder / "new" / "policy.yaml").write_text(POLICY)
    result = diff(folder, "old", "new", "-f", "pods.yaml")
    assert result.return_value == 0
    assert result.output == "0 pairs now denied, 0 pairs now allowed\n"


def test_json(folder: Path) -> None:
    result = json.loads(diff(folder, "old", "new", "-f", "pods.yaml", "-o", "json").output)
    (difference,) = result["differences"]
    assert difference["from"] == [{"workload": "Pod shop/web", "pods": ["shop/web"]}]
    assert [change["after"]["allowed"] for change in difference["changes"]] == [False, True]


def test_a_side_without_pods_has_those_of_the_other(folder: Path) -> None:
    (folder / "old" / "pods.yaml").write_text(PODS)
    result = diff(folder, "old", "new")
    assert result.return_value == 1
    assert result.output.startswith(f"{folder}/new has no pods: compared with those of {folder}/old\n")


def test_policy_kinds_without_enforcement_are_named_with_their_replacement(folder: Path) -> None:
    older = "apiVersion: policy.networking.k8s.io/v1alpha1\nkind: AdminNetworkPolicy\nmetadata: {name: a}\n"
    for name in ("old", "new"):
        (folder / name / "admin.yaml").write_text(older)
    result = diff(folder, "old", "new", "-f", "pods.yaml")
    assert [line for line in result.output.splitlines() if "is skipped" in line] == [
        f"AdminNetworkPolicy a in {folder}/{name}/admin.yaml:1 is skipped: "
        "podwire does not enforce AdminNetworkPolicy of policy.networking.k8s.io/v1alpha1; "
        "ClusterNetworkPolicy of policy.networking.k8s.io/v1alpha2 with tier Admin has replaced it"
        for name in ("old", "new")
    ]
    assert len(json.loads(diff(folder, "old", "new", "-f", "pods.yaml", "-o", "json").output)["notes"]) == 2


def test_a_policy_that_goes_from_audit_into_force_changes_verdicts(folder: Path) -> None:
    for name in ("old", "new"):
        (folder / name / "policy.yaml").write_text(POLICY)
    audited = POLICY.replace("namespace: shop}", "namespace: shop, annotations: {podwire.io/mode: audit}}")
    (folder / "old" / "policy.yaml").write_text(audited)
    result = diff(folder, "old", "new", "-f", "pods.yaml")
    assert result.return_value == 1
    lines = result.output.splitlines()
    assert lines[0] == f"in audit and so not in force in {folder}/old: shop/db"
    assert lines[-1].endswith("pairs now denied, 0 pairs now allowed")
    assert "    before: allowed, no policy applies" in lines
    assert diff(folder, "new", "old", "-f", "pods.yaml").output.splitlines()[-1].startswith("0 pairs now denied, ")
    (folder / "new" / "policy.yaml").write_text(audited.replace("5432", "1"))
    assert diff(folder, "old", "new", "-f", "pods.yaml").return_value == 0


def test_wrong_input(folder: Path) -> None:
    with pytest.raises(ConfigError, match="neither OLD nor NEW has pods"):
        diff(folder, "old", "new")
    with pytest.raises(ConfigError, match="expected two different sets of policies"):
        diff(folder, "old", "old")
    with pytest.raises(ConfigError, match="no local cluster"):
        diff(folder, "live", "new", "--name", "no-such-cluster")


def test_files_are_taken_as_applied_to_the_cluster() -> None:
    live = world("shop/db: podSelector: {}", "shop/web: podSelector: {}", "p: ingress: []")
    shop = Object(metadata=ObjectMeta(name="shop", labels={"team": "sales"}))
    files = world("shop/db: podSelector: {}, policyTypes: [Egress]", cluster="")
    files = msgspec.structs.replace(files, namespaces=(shop,), pods=())
    remarks: list[str] = []
    old, new = combined(live, files, Sides("live", "new"), remarks)
    assert old is live
    assert new.pods == live.pods
    assert new.namespaces == (shop,)
    assert [(p.metadata.name, p.spec.types) for p in new.policies] == [("db", ("Egress",)), ("web", ("Ingress",))]
    kept = "policies of the cluster that are not in new stay (with --prune they count as deleted): p, shop/web"
    assert remarks[1] == kept
    _, pruned = combined(live, files, Sides("live", "new", prune=True), remarks)
    assert [p.metadata.name for p in pruned.policies] == ["db"]
    assert pruned.cluster_policies == ()
    back, now = combined(files, live, Sides("old", "live"), remarks)
    assert (back.pods, now) == (live.pods, live)
