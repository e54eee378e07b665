"""What a pod may request from its node: host network, host ports, all kinds of probes, files, environment."""

import json
import socket
import time
import urllib.request
from typing import Any

import pytest
from tests.e2e.driver import Cluster, eventually, shell_pod


def pod(name: str, *containers: dict[str, Any], **spec: Any) -> str:
    """A Pod as JSON, which is YAML too."""
    return json.dumps(
        {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name, "tier": "x"}},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": list(containers), **spec},
        }
    )  # fmt: skip


def shell(name: str, script: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": "busybox:1.36", "command": ["sh", "-c", script], **more}


def status(cluster: Cluster, namespace: str, name: str) -> dict[str, Any]:
    result: dict[str, Any] = cluster.get("pod", name, "-n", namespace).get("status", {})
    return result


def restarts(cluster: Cluster, namespace: str, name: str) -> dict[str, int]:
    shown = status(cluster, namespace, name).get("containerStatuses", ())
    return {item["name"]: item["restartCount"] for item in shown}


def ready(cluster: Cluster, namespace: str, name: str) -> None:
    cluster.ready(name, namespace=namespace)


def answer(address: str, port: int) -> dict[str, Any]:
    """The answer at an address and port; empty without an answer."""
    try:
        with urllib.request.urlopen(f"http://{address}:{port}/", timeout=20) as output:
            result: dict[str, Any] = json.load(output)
            return result
    except OSError:
        return {}


def node_address(cluster: Cluster, node: str) -> str:
    return str(cluster.get("node", node)["status"]["addresses"][0]["address"])


def test_host_network_pod_has_the_nodes_address(cluster: Cluster, namespace: str) -> None:
    web = {"name": "web", "image": "nginx", "ports": [{"containerPort": 18080}]}
    text = pod("on-node", web, shell("tools", "sleep 600"), hostNetwork=True, nodeName="node-2")
    cluster.apply(text, "-n", namespace)
    ready(cluster, namespace, "on-node")
    address = node_address(cluster, "node-2")
    shown = status(cluster, namespace, "on-node")
    assert (shown["podIP"], shown["hostIP"]) == (address, address)
    assert eventually(lambda: answer(address, 18080))["pod"] == "on-node"
    into = ("exec", "on-node", "-c", "tools", "-n", namespace, "--")
    assert cluster.kubectl(*into, "hostname") == "node-2\n"
    links = cluster.kubectl(*into, "cat", "/proc/net/dev")
    assert "podwire-vxlan:" in links
    cluster.kubectl("delete", "pod", "on-node", "-n", namespace)
    with pytest.raises(OSError):
        socket.create_connection((address, 18080), timeout=2).close()


def test_host_port_leads_to_its_pod(cluster: Cluster, namespace: str) -> None:
    web = {"name": "web", "image": "nginx", "ports": [{"containerPort": 80, "hostPort": 18081}]}
    cluster.apply(pod("here", web, nodeName="node-1"), "-n", namespace)
    ready(cluster, namespace, "here")
    address = node_address(cluster, "node-1")
    assert eventually(lambda: answer(address, 18081))["pod"] == "here"
    # Two pods cannot have it on one node: the second goes to the other node, the third waits.
    for name in ("second", "third"):
        cluster.apply(pod(name, web), "-n", namespace)
    ready(cluster, namespace, "second")
    assert cluster.get("pod", "second", "-n", namespace)["spec"]["nodeName"] == "node-2"

    def why() -> str:
        conditions = status(cluster, namespace, "third").get("conditions", ())
        return next((c.get("message", "") for c in conditions if c["type"] == "PodScheduled"), "")

    assert "didn't have free ports" in eventually(why)
    cluster.kubectl("delete", "pod", "here", "-n", namespace)
    ready(cluster, namespace, "third")
    assert eventually(lambda: answer(address, 18081))["pod"] == "third"


SHOW = """
echo "name=$NAME node=$NODE ip=$IP host=$HOST label=$LABEL cpu=$CPU memory=$MEMORY secret=$SECRET both=$BOTH all=$X_a"
echo "service=$WEB_SERVICE_HOST:$WEB_SERVICE_PORT $WEB_PORT_8080_TCP_ADDR"
cat /info/labels; echo; cat /all/secret/k /all/conf/a; stat -c %a /all/..data/secret/k; sleep 600
"""


def _field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def test_container_sees_downward_api_services_and_volumes(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("create", "secret", "generic", "s", "--from-literal=k=hidden", "-n", namespace)
    cluster.kubectl("create", "configmap", "c", "--from-literal=a=one", "-n", namespace)
    cluster.kubectl("create", "service", "clusterip", "web", "--tcp=8080:80", "-n", namespace)
    service = cluster.get("service", "web", "-n", namespace)["spec"]["clusterIP"]
    env = [
        _field("NAME", "metadata.name"), _field("NODE", "spec.nodeName"), _field("IP", "status.podIP"),
        _field("HOST", "status.hostIP"), _field("LABEL", "metadata.labels['tier']"),
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
        {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "requests.memory"}}},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "BOTH", "value": "$(NAME)-$(SECRET)-$$(NAME)"},
    ]  # fmt: skip
    show = shell(
        "show", SHOW, env=env, envFrom=[{"prefix": "X_", "configMapRef": {"name": "c"}}],
        resources={"limits": {"cpu": "250m", "memory": "64Mi"}},
        volumeMounts=[{"name": "info", "mountPath": "/info"}, {"name": "all", "mountPath": "/all", "readOnly": True}],
    )  # fmt: skip
    labels = {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}
    sources = [
        {"secret": {"name": "s", "items": [{"key": "k", "path": "secret/k", "mode": 0o400}]}},
        {"configMap": {"name": "c", "items": [{"key": "a", "path": "conf/a"}]}},
    ]
    volumes = [
        {"name": "info", "downwardAPI": {"items": [labels]}},
        {"name": "all", "projected": {"sources": sources}},
    ]
    cluster.apply(pod("show", show, volumes=volumes), "-n", namespace)
    ready(cluster, namespace, "show")
    text = eventually(lambda: cluster.kubectl("logs", "show", "-n", namespace))
    shown = status(cluster, namespace, "show")
    node = cluster.get("pod", "show", "-n", namespace)["spec"]["nodeName"]
    assert text.splitlines() == [
        f"name=show node={node} ip={shown['podIP']} host={shown['hostIP']} label=x cpu=250 memory=67108864 "
        "secret=hidden both=show-hidden-$(NAME) all=one",
        f"service={service}:8080 {service}",
        'app="show"', 'tier="x"', 'topology.kubernetes.io/zone="segment-0"', "hiddenone400",
    ]  # fmt: skip
    # Files follow their objects while the pod runs, variables do not.
    cluster.kubectl("label", "pod", "show", "tier=y", "--overwrite", "-n", namespace)
    arguments = ("exec", "show", "-n", namespace, "--", "cat", "/info/labels")
    eventually(lambda: 'tier="y"' in cluster.kubectl(*arguments))


def test_other_probes_wait_for_the_startup_probe(cluster: Cluster, namespace: str) -> None:
    there = {"exec": {"command": ["test", "-e", "/d/up"]}, "periodSeconds": 1, "failureThreshold": 1}
    slow = shell(
        "slow", "sleep 3; touch /d/up; sleep 600",
        startupProbe={**there, "failureThreshold": 30}, livenessProbe=there, readinessProbe=there,
        volumeMounts=[{"name": "d", "mountPath": "/d"}],
    )  # fmt: skip
    cluster.apply(pod("slow", slow, volumes=[{"name": "d", "emptyDir": {}}]), "-n", namespace)

    def container() -> dict[str, Any]:
        result: dict[str, Any] = (status(cluster, namespace, "slow").get("containerStatuses") or [{}])[0]
        return result

    eventually(lambda: "running" in container().get("state", {}))
    before = container()
    assert (before["started"], before["ready"]) == (False, False)
    ready(cluster, namespace, "slow")
    after = container()
    assert (after["started"], after["ready"], after["restartCount"]) == (True, True, 0)


def test_a_container_that_never_starts_up_is_restarted(cluster: Cluster, namespace: str) -> None:
    probe = {"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 2}
    cluster.apply(pod("never", shell("c", "sleep 600", startupProbe=probe)), "-n", namespace)
    eventually(lambda: restarts(cluster, namespace, "never").get("c", 0) >= 1)
    reported = ("describe", "pod", "never", "-n", namespace)
    eventually(lambda: "failed startup probe" in cluster.kubectl(*reported))


def test_liveness_by_http_tcp_and_grpc(cluster: Cluster, namespace: str) -> None:
    """Three containers whose probe fails, and three with the same probe where it succeeds."""

    def server(name: str, port: int, probe: dict[str, Any]) -> dict[str, Any]:
        liveness = {**probe, "periodSeconds": 1, "failureThreshold": 1}
        return {"name": name, "image": "nginx", "ports": [{"containerPort": port}], "livenessProbe": liveness}

    def silent(name: str, probe: dict[str, Any]) -> dict[str, Any]:
        """A program that listens nowhere; a stand-in would listen on the port of its probe."""
        return shell(name, "sleep 600", livenessProbe={**probe, "periodSeconds": 1, "failureThreshold": 1})

    containers = [
        server("http-good", 81, {"httpGet": {"path": "/status/204", "port": 81}}),
        server("http-bad", 82, {"httpGet": {"path": "/status/500", "port": 82}}),
        server("tcp-good", 83, {"tcpSocket": {"port": 83}}),
        silent("tcp-bad", {"tcpSocket": {"port": 9084}}),
        server("grpc-good", 85, {"grpc": {"port": 85}}),
        silent("grpc-bad", {"grpc": {"port": 9086}}),
    ]
    cluster.apply(pod("probed", *containers), "-n", namespace)
    bad = {"http-bad", "tcp-bad", "grpc-bad"}
    eventually(lambda: {n for n, count in restarts(cluster, namespace, "probed").items() if count} >= bad)
    assert {n for n, count in restarts(cluster, namespace, "probed").items() if count} == bad
    reported = ("events", "--for", "pod/probed", "-n", namespace)
    for text in ("HTTP probe failed with statuscode: 500", ":9084: connect: connection refused", ":9086"):
        eventually(lambda text=text: text in cluster.kubectl(*reported))


def test_on_failure_restarts_until_success(cluster: Cluster, namespace: str) -> None:
    script = "if test -e /d/once; then exit 0; fi; touch /d/once; exit 9"
    work = shell("work", script, volumeMounts=[{"name": "d", "mountPath": "/d"}])
    text = pod("tries", work, restartPolicy="OnFailure", volumes=[{"name": "d", "emptyDir": {}}])
    cluster.apply(text, "-n", namespace)
    cluster.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/tries", "-n", namespace, "--timeout=90s")
    assert restarts(cluster, namespace, "tries") == {"work": 1}


def test_failing_init_container_fails_a_pod_without_restarts(cluster: Cluster, namespace: str) -> None:
    text = pod("stuck", shell("main", "sleep 600"), initContainers=[shell("first", "exit 4")], restartPolicy="Never")
    cluster.apply(text, "-n", namespace)
    cluster.kubectl("wait", "--for=jsonpath={.status.phase}=Failed", "pod/stuck", "-n", namespace, "--timeout=90s")
    assert "Init:Error" in cluster.kubectl("get", "pod", "stuck", "-n", namespace)
    shown = status(cluster, namespace, "stuck")
    assert shown["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 4
    assert "running" not in shown["containerStatuses"][0]["state"]


def test_pod_that_ignores_sigterm_is_killed_after_its_grace(cluster: Cluster, namespace: str) -> None:
    stubborn = shell_pod("stubborn", "trap '' TERM; while true; do sleep 0.1; done")
    cluster.apply(stubborn.replace("terminationGracePeriodSeconds: 1", "terminationGracePeriodSeconds: 3"),
                  "-n", namespace)  # fmt: skip
    ready(cluster, namespace, "stubborn")
    began = time.monotonic()
    cluster.kubectl("delete", "pod", "stubborn", "-n", namespace, "--wait=false")
    assert "Terminating" in cluster.kubectl("get", "pod", "stubborn", "-n", namespace)
    cluster.kubectl("wait", "--for=delete", "pod/stubborn", "-n", namespace, "--timeout=90s")
    assert 2.5 < time.monotonic() - began < 25, "without saying anything it would have 30 s"


def test_a_pod_of_an_unknown_network_gets_an_event(cluster: Cluster, namespace: str) -> None:
    lost = json.loads(pod("lost", shell("c", "sleep 600")))
    lost["metadata"]["annotations"] = {"podwire.io/network": "green"}
    cluster.apply(json.dumps(lost), "-n", namespace)
    refusal = "annotation podwire.io/network: this node has no pod network 'green'"
    eventually(lambda: refusal in cluster.kubectl("events", "--for", "pod/lost", "-n", namespace))
    assert "FailedCreatePodSandBox" in cluster.kubectl("events", "--for", "pod/lost", "-n", namespace)
    assert "podIP" not in status(cluster, namespace, "lost")
