"""``podwire gateway migrate`` with files: objects on standard output, the report on standard error."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from podwire.cli.main import root
from podwire.errors import ConfigError

_INGRESS = """
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: web
  namespace: shop
  annotations: {nginx.ingress.kubernetes.io/limit-rps: "5"}
spec:
  ingressClassName: nginx
  rules:
    - host: web.example
      http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {name: http}}}}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {ports: [{name: http, port: 8080}]}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "ingress.yaml"
    path.write_text(_INGRESS)
    return str(path)


def _migrate(*arguments: str) -> Result:
    return CliRunner().invoke(root, ["gateway", "migrate", *arguments])


def test_objects_and_report_go_to_different_outputs(file: str) -> None:
    result = _migrate("-f", file, "--gateway", "web/front")
    assert result.exit_code == 0, result.output
    gateway, route = yaml.load_all(result.stdout, Loader=yaml.CSafeLoader)
    assert (gateway["kind"], gateway["metadata"]) == ("Gateway", {"name": "front", "namespace": "web"})
    assert route["spec"]["rules"][0]["backendRefs"] == [{"name": "web", "port": 8080}]
    assert "Ingress shop/web metadata.annotations[nginx.ingress.kubernetes.io/limit-rps]" in result.stderr


def test_json_has_the_objects_and_the_report(file: str) -> None:
    answer = json.loads(_migrate("-f", file, "-o", "json").stdout)
    assert [item["kind"] for item in answer["objects"]] == ["Gateway", "HTTPRoute"]
    assert any("limit-rps" in entry["field"] for entry in answer["lost"])


def test_other_classes_and_namespaces_are_left_out(file: str) -> None:
    for option, value in (("--ingress-class", "other"), ("-n", "other")):
        answer = json.loads(_migrate("-f", file, "-o", "json", option, value).stdout)
        assert [item["kind"] for item in answer["objects"]] == ["Gateway"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--gateway", "front"), "--gateway: expected NAMESPACE/NAME, got 'front'"),
        (("--settings", "a/b"), "--settings: no file has the ConfigMap a/b"),
    ],
)
def test_wrong_options_are_named(file: str, options: tuple[str, str], expected: str) -> None:
    result = _migrate("-f", file, *options)
    assert isinstance(result.exception, ConfigError) and expected in str(result.exception)


def test_a_wrong_ingress_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(_INGRESS.replace("rules:\n", "rules: {}\n  defaults:\n", 1).split("---")[0])
    result = _migrate("-f", str(path))
    assert isinstance(result.exception, ConfigError) and "wrong.yaml:" in str(result.exception)
