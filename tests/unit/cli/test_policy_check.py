"""``podwire policy check`` on files: no cluster, no root."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from podwire.cli.main import root
from podwire.errors import ConfigError

WORKLOADS = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: i, ports: [{containerPort: 8080}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
"""
POLICY = """apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: web
  namespace: shop
spec:
  podSelector: {matchLabels: {app: web}}
  ingress:
  - from:
    - podSelector: {}
    ports:
    - port: 80
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "workloads.yaml").write_text(WORKLOADS)
    (tmp_path / "policy.yaml").write_text(POLICY)
    return tmp_path


def check(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(
        root, ["policy", "check", "-f", str(folder), *arguments], catch_exceptions=False, standalone_mode=False
    )


def test_a_finding_has_its_line(folder: Path) -> None:
    result = check(folder)
    assert result.return_value == 1
    lines = result.output.splitlines()
    assert lines[0].startswith(
        f"{folder}/policy.yaml:12: warning: NetworkPolicy shop/web spec.ingress[0].ports[0]: 80 is the port of Service"
    )
    assert lines[0].endswith("Write 8080 [service-port]")
    assert lines[1:] == ["1 policy, 2 pods: 0 errors, 1 warning, 0 notes"]


def test_json(folder: Path) -> None:
    (finding,) = json.loads(check(folder, "-o", "json").output)
    assert finding["id"] == "service-port"
    assert finding["severity"] == "warning"
    assert finding["name"] == "shop/web"
    assert finding["where"] == f"{folder}/policy.yaml:12"


def test_correct_policies_end_with_status_0(folder: Path) -> None:
    (folder / "policy.yaml").write_text(POLICY.replace("port: 80", "port: 8080"))
    result = check(folder, "--strict")
    assert result.return_value == 0
    assert result.output == "1 policy, 2 pods: 0 errors, 0 warnings, 0 notes\n"


def test_notes_count_only_with_strict(folder: Path) -> None:
    (folder / "policy.yaml").write_text(POLICY.partition("  - from")[0] + "  - {}\n")
    assert check(folder).return_value == 0
    assert check(folder, "--strict").return_value == 1


def test_what_is_not_in_the_files_never_counts(folder: Path) -> None:
    (folder / "policy.yaml").write_text(POLICY.replace("namespace: shop", "namespace: till"))
    result = check(folder, "--strict")
    assert "[not-checked]" in result.output
    assert result.return_value == 0


@pytest.mark.parametrize("example", ["shop", "vote", "boutique", "guarded/k8s"])
def test_the_examples_are_without_findings(example: str) -> None:
    result = check(Path(__file__).parents[3] / "examples" / example, "--strict")
    assert result.return_value == 0, result.output


def test_refused_object_is_reported_with_its_line(folder: Path) -> None:
    (folder / "policy.yaml").write_text(POLICY.replace("port: 80", "prot: 80"))
    with pytest.raises(ConfigError, match=r"policy.yaml:12.*ports\[0\].prot"):
        check(folder)


def test_standard_input_and_folders_below(folder: Path, tmp_path: Path) -> None:
    below = tmp_path / "below"
    below.mkdir()
    (folder / "policy.yaml").rename(below / "policy.yaml")
    typed = CliRunner().invoke(root, ["policy", "check", "-f", "-"], input=POLICY, standalone_mode=False)
    assert typed.output.splitlines()[-1].startswith("1 policy, 0 pods: ")
    assert check(folder).output.splitlines()[-1].startswith("0 policies, 2 pods: ")
    assert check(folder, "-R").output.splitlines()[-1].startswith("1 policy, 2 pods: ")


OPERATED = """
apiVersion: monitoring.coreos.com/v1
kind: Prometheus
metadata: {name: k8s, namespace: shop}
spec: {replicas: 2, image: prom}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: prom, namespace: shop}
spec:
  podSelector: {matchLabels: {prometheus: k8s}}
  ingress: [{from: [{podSelector: {matchLabels: {alertmanager: main}}}], ports: [{port: 9090}]}]
"""


def test_pods_of_operators_give_hints_and_no_warnings(folder: Path) -> None:
    (folder / "policy.yaml").write_text(OPERATED)
    result = check(folder)
    lines = [line for line in result.output.splitlines() if "selects-nothing" in line or "peer-matches-nothing" in line]
    assert len(lines) == 2
    assert all(": note: " in line and "an operator may make such pods for Prometheus k8s" in line for line in lines)
    (folder / "policy.yaml").write_text(OPERATED.replace("prometheus: k8s", "app: webb"))
    assert "warning: NetworkPolicy shop/prom" in check(folder).output


def test_folder_document_without_kind_is_named_and_passed_over(folder: Path) -> None:
    (folder / "values.yaml").write_text("replicas: 2\nimage: {tag: v1}\n")
    result = check(folder)
    assert (
        f"{folder}/values.yaml:1: no Kubernetes manifest, which has apiVersion and kind: passed over" in result.output
    )
    assert result.return_value == 1
    with pytest.raises(ConfigError, match="expected a text, found nothing"):
        check(folder / "values.yaml")
