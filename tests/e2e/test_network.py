"""Services, DNS and NodePorts with real packets."""

import json
import socket
import urllib.request
from typing import Any

from tests.e2e.driver import Cluster, deployment, eventually, shell_pod

_SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: %s\n"


def _web(cluster: Cluster, namespace: str, replicas: int = 2) -> None:
    cluster.apply(deployment("web", replicas=replicas), "-n", namespace)
    cluster.rolled_out("web", namespace=namespace)


def _client(cluster: Cluster, namespace: str) -> None:
    cluster.apply(shell_pod("client", "sleep 600"), "-n", namespace)
    cluster.ready("client", namespace=namespace)


def _ask(cluster: Cluster, namespace: str, *hosts: str, port: int = 80) -> list[dict[str, Any]]:
    """The answers of the stand-in server at these hosts to the pod ``client``; empty when a host does not answer."""
    script = "import sys,urllib.request as u\nfor a in sys.argv[1:]: print(u.urlopen(a, timeout=10).read().decode())"
    urls = [f"http://{host}:{port}/" for host in hosts]
    done = cluster.run(["kubectl", "exec", "client", "-n", namespace, "--", "python3", "-c", script, *urls])
    return [json.loads(line) for line in done.stdout.splitlines() if line] if done.returncode == 0 else []


def _resolve(cluster: Cluster, namespace: str, name: str) -> list[str]:
    done = cluster.run(["kubectl", "exec", "client", "-n", namespace, "--", "getent", "ahostsv4", name])
    return sorted({line.split()[0] for line in done.stdout.splitlines()})


def test_a_service_by_name_reaches_each_of_its_pods(cluster: Cluster, namespace: str) -> None:
    _web(cluster, namespace)
    _client(cluster, namespace)
    cluster.apply(_SERVICE % ("web", "{selector: {app: web}, ports: [{port: 8080, targetPort: 80}]}"), "-n", namespace)
    eventually(lambda: _ask(cluster, namespace, "web", port=8080))
    pods = {pod["metadata"]["name"] for pod in cluster.get("pods", "-l", "app=web", "-n", namespace)["items"]}
    for name in ("web", f"web.{namespace}", f"web.{namespace}.svc.cluster.local"):
        answers = eventually(lambda name=name: _ask(cluster, namespace, *[name] * 30, port=8080))
        assert {answer["pod"] for answer in answers} == pods


def test_pods_see_each_others_addresses(cluster: Cluster, namespace: str) -> None:
    _web(cluster, namespace)
    _client(cluster, namespace)
    own = cluster.get("pod", "client", "-n", namespace)["status"]["podIP"]
    addresses = [pod["status"]["podIP"] for pod in cluster.get("pods", "-l", "app=web", "-n", namespace)["items"]]
    assert len(addresses) == 2
    answers = eventually(lambda: _ask(cluster, namespace, *addresses))
    assert [answer["client"].startswith(own) for answer in answers] == [True, True]


def test_dns_follows_the_services(cluster: Cluster, namespace: str) -> None:
    _web(cluster, namespace)
    _client(cluster, namespace)
    assert _resolve(cluster, namespace, "late") == []
    cluster.apply(_SERVICE % ("late", "{selector: {app: web}, ports: [{port: 80}]}"), "-n", namespace)
    address = cluster.get("service", "late", "-n", namespace)["spec"]["clusterIP"]
    eventually(lambda: _resolve(cluster, namespace, "late") == [address])
    cluster.kubectl("delete", "service", "late", "-n", namespace)
    eventually(lambda: _resolve(cluster, namespace, "late") == [])


def test_a_headless_service_gives_the_addresses_of_its_ready_pods(cluster: Cluster, namespace: str) -> None:
    _web(cluster, namespace)
    _client(cluster, namespace)
    text = _SERVICE % ("all", "{clusterIP: None, selector: {app: web}, ports: [{port: 80}]}")
    cluster.apply(text, "-n", namespace)

    def addresses() -> list[str]:
        pods = cluster.get("pods", "-l", "app=web", "-n", namespace)["items"]
        return sorted(p["status"].get("podIP", "") for p in pods if "deletionTimestamp" not in p["metadata"])

    eventually(lambda: _resolve(cluster, namespace, "all") == addresses() and len(addresses()) == 2)
    cluster.kubectl("scale", "deployment/web", "--replicas=1", "-n", namespace)
    eventually(lambda: len(addresses()) == 1 and _resolve(cluster, namespace, "all") == addresses())


def test_a_node_port_answers_on_every_node(cluster: Cluster, namespace: str) -> None:
    _web(cluster, namespace, replicas=1)
    cluster.apply(_SERVICE % ("out", "{type: NodePort, selector: {app: web}, ports: [{port: 80}]}"), "-n", namespace)
    port = cluster.get("service", "out", "-n", namespace)["spec"]["ports"][0]["nodePort"]
    nodes = cluster.kubectl(
        "get", "nodes", "-o", "jsonpath={.items[*].status.addresses[?(@.type=='InternalIP')].address}"
    )

    def answers(node: str) -> str:
        try:
            with urllib.request.urlopen(f"http://{node}:{port}/", timeout=2) as answer:
                return str(json.load(answer)["pod"])
        except OSError:
            return ""

    v4 = [node for node in nodes.split() if ":" not in node]
    assert len(v4) == 2
    for node in v4:
        assert eventually(lambda node=node: answers(node)).startswith("web-")


def test_udp_goes_through_a_service(cluster: Cluster, namespace: str) -> None:
    text = deployment("echo").replace(
        "[{containerPort: 80}]", "[{containerPort: 80}, {containerPort: 5353, protocol: UDP}]"
    )
    cluster.apply(text, "-n", namespace)
    cluster.rolled_out("echo", namespace=namespace)
    spec = "{type: NodePort, selector: {app: echo}, ports: [{port: 53, targetPort: 5353, protocol: UDP}]}"
    cluster.apply(_SERVICE % ("echo", spec), "-n", namespace)
    port = cluster.get("service", "echo", "-n", namespace)["spec"]["ports"][0]["nodePort"]
    node = cluster.kubectl("get", "node", "node-1", "-o", "jsonpath={.status.addresses[0].address}")

    def answer() -> dict[str, Any]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
            link.settimeout(1)
            link.connect((node, port))
            try:
                link.send(b"podwire-probe\n")
                reply: dict[str, Any] = json.loads(link.recv(4096))
                return reply
            except OSError:
                return {}

    output = eventually(answer)
    assert output["protocol"] == "UDP" and output["pod"].startswith("echo-")


def test_a_service_without_endpoints_refuses_at_once(cluster: Cluster, namespace: str) -> None:
    _client(cluster, namespace)
    cluster.apply(_SERVICE % ("empty", "{selector: {app: nobody}, ports: [{port: 80}]}"), "-n", namespace)
    address = cluster.get("service", "empty", "-n", namespace)["spec"]["clusterIP"]
    script = (
        "import socket,sys,time\n"
        "start=time.monotonic()\n"
        "try: socket.create_connection((sys.argv[1],80),timeout=5); print('open')\n"
        "except OSError as e: print(type(e).__name__, time.monotonic()-start < 1)"
    )
    arguments = ("exec", "client", "-n", namespace, "--", "python3", "-c", script, address)
    eventually(lambda: cluster.kubectl(*arguments).split() == ["ConnectionRefusedError", "True"])


def test_endpoints_follow_readiness(cluster: Cluster, namespace: str) -> None:
    _web(cluster, namespace)
    cluster.apply(_SERVICE % ("web", "{selector: {app: web}, ports: [{port: 80}]}"), "-n", namespace)

    def ready() -> int:
        slices = cluster.get("endpointslices", "-l", "kubernetes.io/service-name=web", "-n", namespace)["items"]
        return sum(e["conditions"].get("ready", False) for s in slices for e in s.get("endpoints") or ())

    eventually(lambda: ready() == 2)
    cluster.kubectl("scale", "deployment/web", "--replicas=3", "-n", namespace)
    eventually(lambda: ready() == 3)
    arguments = ("get", "endpoints", "web", "-n", namespace, "-o", "jsonpath={.subsets[0].addresses[*].ip}")
    eventually(lambda: len(cluster.kubectl(*arguments).split()) == 3)


def test_the_api_is_reached_from_a_pod_with_its_token(cluster: Cluster, namespace: str) -> None:
    _client(cluster, namespace)
    script = (
        "import ssl,urllib.request as u\n"
        "d='/var/run/secrets/kubernetes.io/serviceaccount/'\n"
        "c=ssl.create_default_context(cafile=d+'ca.crt')\n"
        "h={'Authorization':'Bearer '+open(d+'token').read()}\n"
        "r=u.Request('https://kubernetes.default.svc/version',headers=h)\n"
        "print(u.urlopen(r,context=c,timeout=30).read().decode())"
    )
    done = cluster.kubectl("exec", "client", "-n", namespace, "--", "python3", "-c", script)
    assert json.loads(done)["major"] == "1"
