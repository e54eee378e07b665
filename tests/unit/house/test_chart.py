"""The Helm chart and what is made from it."""

import os
import re
import shutil
import subprocess
import sys
from typing import Any

import yaml
from tests.unit.house.syntax import ROOT


def test_schema_docs_and_manifests_follow_from_the_chart() -> None:
    command = [sys.executable, "scripts/render_chart.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


ENDPOINT_FIELDS = {"port", "path", "interval"}
"""The fields of an endpoint that the chart uses, of those that the operator's definition has."""


def rendered(*settings: str) -> list[dict[str, Any]]:
    """The objects of the chart with these settings."""
    helm = shutil.which("helm", path=f"{os.environ['PATH']}:{ROOT / '.venv/bin'}") or "helm"
    command = [helm, "template", "podwire", "deploy/helm/podwire", "--namespace", "kube-system", "--set", "api.host=a"]
    command += [word for text in settings for word in ("--set", text)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def test_monitors_select_pods_and_services_that_exist() -> None:
    """Checked by the definitions of PodMonitor and ServiceMonitor: selector, and ports by their names."""
    objects = rendered("serviceMonitor.enabled=true", "serviceMonitor.labels.release=monitoring")
    named = {(item["kind"], item["metadata"]["name"]): item for item in objects}
    pods, service = named["PodMonitor", "podwire-agent"], named["ServiceMonitor", "podwire-dns"]
    template = named["DaemonSet", "podwire-agent"]["spec"]["template"]
    ports = {port["name"] for container in template["spec"]["containers"] for port in container["ports"]}
    dns = named["Service", "kube-dns"]
    for monitor, field, labels, names in (
        (pods, "podMetricsEndpoints", template["metadata"]["labels"], ports),
        (service, "endpoints", dns["metadata"]["labels"], {port["name"] for port in dns["spec"]["ports"]}),
    ):
        assert monitor["apiVersion"] == "monitoring.coreos.com/v1" and set(monitor["spec"]) == {"selector", field}
        assert monitor["metadata"]["labels"]["release"] == "monitoring"
        assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
        (endpoint,) = monitor["spec"][field]
        assert set(endpoint) == ENDPOINT_FIELDS and endpoint["port"] in names
        assert re.fullmatch(r"(\d+[hms])+", endpoint["interval"]), "a duration of Prometheus"


def test_controllers_of_the_cluster_keep_their_work() -> None:
    """A cluster has node ranges, EndpointSlices and garbage collection of its own: none of ours by default."""
    (config,) = [
        yaml.safe_load(item["data"]["controller.yaml"])
        for item in rendered()
        if (item["kind"], item["metadata"]["name"]) == ("ConfigMap", "podwire-controller")
    ]
    assert config["controller"]["parts"] == ["policystatus", "egress"]
    assert config["controller"]["leaderElection"] is True
