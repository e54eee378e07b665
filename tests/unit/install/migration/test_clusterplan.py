"""The objects that a migration makes and changes."""

from typing import Any

import pytest

from podwire.errors import ConfigError
from podwire.install.migration.clusterplan import (
    LABEL,
    check_agents,
    excluded,
    flow_service,
    old_daemonsets,
    sender_pod,
    server_pod,
    step_pod,
)

RULE = {"key": LABEL, "operator": "NotIn", "values": ["true"]}


def daemonset(name: str, namespace: str = "kube-system", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"template": {"spec": spec}}}


AGENTS = daemonset(
    "podwire-agent",
    nodeSelector={LABEL: "true"},
    hostNetwork=True,
    initContainers=[{"name": "install"}],
    imagePullSecrets=[{"name": "pull"}],
    containers=[
        {
            "name": "agent",
            "image": "podwire:1",
            "args": ["agent"],
            "livenessProbe": {},
            "ports": [],
            "env": [{"name": "NODE_NAME"}],
            "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}},
            "volumeMounts": [
                {"name": "config", "mountPath": "/etc/podwire"},
                {"name": "host-local", "mountPath": "/var/lib/cni", "readOnly": True},
            ],
        }
    ],
    volumes=[{"name": "config", "configMap": {"name": "podwire-agent"}}, {"name": "host-local", "hostPath": {}}],
)


def test_known_and_named_daemonsets_are_the_old_network() -> None:
    items = [daemonset("kube-proxy"), daemonset("kube-flannel-ds", "kube-flannel"), daemonset("own"), daemonset("log")]
    names = [item["metadata"]["name"] for item in old_daemonsets(items, ["kube-system/own"])]
    assert names == ["kube-flannel-ds", "kube-proxy", "own"]
    with pytest.raises(ConfigError, match="--daemonset: 'own': expected NAMESPACE/NAME"):
        old_daemonsets(items, ["own"])


def affinity(*terms: Any) -> dict[str, Any]:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, affinity({"matchExpressions": [RULE]})),
        (
            affinity({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {"matchFields": [{"key": "b"}]}),
            affinity(
                {"matchExpressions": [{"key": "a", "operator": "Exists"}, RULE]},
                {"matchFields": [{"key": "b"}], "matchExpressions": [RULE]},
            ),
        ),
        ({"podAntiAffinity": {"x": 1}}, {"podAntiAffinity": {"x": 1}} | affinity({"matchExpressions": [RULE]})),
    ],
)
def test_exclusion_is_added_to_every_term_and_removed_again(before: Any, after: Any) -> None:
    item = daemonset("kube-proxy", **({"affinity": before} if before else {}))
    patch = excluded(item, exclude=True)
    assert patch == {"spec": {"template": {"spec": {"affinity": after}}}}
    changed = daemonset("kube-proxy", affinity=after)
    assert excluded(changed, exclude=True) is None, "a second time there is nothing to do"
    assert excluded(changed, exclude=False) == {"spec": {"template": {"spec": {"affinity": before}}}}
    assert excluded(item, exclude=False) is None


def test_agents_that_would_run_everywhere_are_refused() -> None:
    check_agents(AGENTS)
    with pytest.raises(ConfigError, match=r"spec.template.spec.nodeSelector: expected podwire.io/migrated: 'true'"):
        check_agents(daemonset("podwire-agent", nodeSelector={"kubernetes.io/os": "linux"}))


def test_a_step_has_the_rights_and_mounts_of_the_agent() -> None:
    pod = step_pod(AGENTS, "node-1", "network", ["--before", "{}"])
    assert pod["metadata"]["name"] == "podwire-migrate-node-1"
    (container,) = pod["spec"].pop("containers")
    assert container["args"] == [
        "migrate", "node", "network", "--before", "{}", "--config", "/etc/podwire/agent.yaml",
    ]  # fmt: skip
    assert container["volumeMounts"] == [
        {"name": "config", "mountPath": "/etc/podwire"},
        {"name": "host-local", "mountPath": "/var/lib/cni"},
    ]
    assert "livenessProbe" not in container and "ports" not in container
    assert container["securityContext"] == {"capabilities": {"add": ["NET_ADMIN"]}}
    assert pod["spec"] == {
        "hostNetwork": True,
        "imagePullSecrets": [{"name": "pull"}],
        "volumes": [
            {"name": "config", "configMap": {"name": "podwire-agent"}},
            {"name": "host-local", "hostPath": {"path": "/var/lib/cni", "type": "DirectoryOrCreate"}},
        ],
        "restartPolicy": "Never",
        "nodeName": "node-1",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
    }
    assert AGENTS["spec"]["template"]["spec"]["containers"][0]["args"] == ["agent"], "the template is not changed"


def test_flows_run_in_pods_of_the_pod_network() -> None:
    server, sender = server_pod(AGENTS, "node-1"), sender_pod(AGENTS, "node-1", ["10.0.0.1", "10.96.0.5"])
    assert "hostNetwork" not in server["spec"] and "securityContext" not in server["spec"]["containers"][0]
    assert server["spec"]["containers"][0]["args"] == ["flows", "serve"]
    assert sender["spec"]["containers"][0]["args"] == ["flows", "send", "10.0.0.1", "10.96.0.5"]
    selector = flow_service()["spec"]["selector"]
    assert selector.items() <= server["metadata"]["labels"].items()
    assert not selector.items() <= sender["metadata"]["labels"].items()
