"""The Helm chart and what is made from it."""

import os
import re
import shutil
import subprocess
import sys
from typing import Any

import pytest
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
    return [document for document in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if document]


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
        yaml.load(item["data"]["controller.yaml"], Loader=yaml.CSafeLoader)
        for item in rendered()
        if (item["kind"], item["metadata"]["name"]) == ("ConfigMap", "podwire-controller")
    ]
    assert config["controller"]["parts"] == ["policystatus", "egress"]
    assert config["controller"]["leaderElection"] is True


def test_agents_see_the_bus_of_the_node_on_request() -> None:
    for settings, expected in (((), []), (("agent.firewalld=true",), ["/run/dbus"])):
        (agent,) = (
            item["spec"]["template"]["spec"]
            for item in rendered(*settings)
            if (item["kind"], item["metadata"]["name"]) == ("DaemonSet", "podwire-agent")
        )
        paths = {volume["name"]: volume["hostPath"]["path"] for volume in agent["volumes"] if "hostPath" in volume}
        mounts = agent["containers"][0]["volumeMounts"]
        assert [paths[mount["name"]] for mount in mounts if mount["mountPath"] == "/run/dbus"] == expected


EXPOSURES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "LoadBalancer Service": (
        ("gateway.onEveryNode=false", "gateway.externalTrafficPolicy=Cluster"), "Deployment", "LoadBalancer",
    ),
    "LoadBalancer with Local": ((), "DaemonSet", "LoadBalancer"),
    "node ports behind an L4 address": (
        ("gateway.exposure=nodePort", "gateway.nodePorts.http=30080"), "DaemonSet", "NodePort",
    ),
    "host ports": (("gateway.exposure=hostPort",), "DaemonSet", "ClusterIP"),
    "host network": (("gateway.exposure=hostNetwork",), "DaemonSet", "ClusterIP"),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPOSURES)
def test_the_gateway_is_reached_as_the_values_say(name: str) -> None:
    settings, kind, service_type = EXPOSURES[name]
    objects = {(item["kind"], item["metadata"]["name"]): item for item in rendered("gateway.enabled=true", *settings)}
    service, pods = objects["Service", "podwire-gateway"]["spec"], objects[kind, "podwire-gateway"]["spec"]
    assert service["type"] == service_type
    template = pods["template"]
    assert service["selector"].items() <= template["metadata"]["labels"].items()
    engine = template["spec"]["containers"][1]
    config = yaml.load(objects["ConfigMap", "podwire-gateway"]["data"]["config.yaml"], Loader=yaml.CSafeLoader)
    ports = {port["name"]: port for port in engine["ports"]}
    assert [port["targetPort"] for port in service["ports"]] == [config["httpPort"], config["httpsPort"]]
    assert ports["http"]["containerPort"] == config["httpPort"]
    on_host_network = name == "host network"
    assert ports["http"].get("hostPort") == (80 if name == "host ports" else None)
    assert template["spec"].get("hostNetwork", False) == on_host_network
    added = [entry["securityContext"]["capabilities"].get("add", []) for entry in template["spec"]["containers"]]
    assert added == ([[], ["NET_BIND_SERVICE"]] if on_host_network else [[], []])
    assert (("NetworkPolicy", "podwire-gateway") in objects) != on_host_network
    assert config.get("publishNodes", False) == (service_type == "ClusterIP")
    assert config.get("externalTrafficPolicy", "Local") == ("Cluster" if kind == "Deployment" else "Local")


def _rights(role: dict[str, Any]) -> set[tuple[str, str, str]]:
    """The verbs of a role, each with its group and resource."""
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_gateway_has_the_rights_of_local_clusters() -> None:
    addon = [
        item
        for item in yaml.load_all((ROOT / "src/podwire/local/addons/gateway.yaml").read_text(), Loader=yaml.CSafeLoader)
        if item["kind"] == "ClusterRole"
    ]
    (role,) = (
        item
        for item in rendered("gateway.enabled=true")
        if item["metadata"]["name"] == "podwire-gateway" and item["kind"] == "ClusterRole"
    )
    assert _rights(addon[0]) <= _rights(role)


def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    helm = shutil.which("helm", path=f"{os.environ['PATH']}:{ROOT / '.venv/bin'}") or "helm"
    command = [helm, "lint", "--strict", "deploy/helm/podwire", "--namespace", "kube-system"]
    settings = ["--set", "api.host=a,gateway.enabled=true,gateway.gatewayClass.create=true"]
    done = subprocess.run([*command, *settings], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_node_local_dns_runs_in_front_of_any_dns_service() -> None:
    objects = rendered("dns.enabled=false", "dns.nodeLocal=true", "dns.clusterIP=10.96.0.53")
    named = {(item["kind"], item["metadata"]["name"]): item for item in objects}
    assert ("Service", "kube-dns") not in named and ("Deployment", "podwire-dns") not in named
    agent = yaml.load(named["ConfigMap", "podwire-agent"]["data"]["agent.yaml"], Loader=yaml.CSafeLoader)
    assert agent["dns"] == {"nodeLocal": True}
    pod = named["DaemonSet", "podwire-dns-node"]["spec"]["template"]["spec"]
    assert pod["hostNetwork"] and ("ServiceAccount", pod["serviceAccountName"]) in named
    (container,) = pod["containers"]
    assert container["args"][-2:] == ["--node-local", "10.96.0.53"]
    assert container["securityContext"]["capabilities"]["add"] == ["NET_BIND_SERVICE", "NET_RAW"]
