"""Services, slices, names and host ports as Kubernetes' conformance specs use them."""

import json
import socket
from typing import Any

from tests.e2e.clusters import in_node
from tests.e2e.connection import Connection
from tests.e2e.driver import Cluster, eventually

_SHELL = {"name": "tools", "image": "busybox:1.36", "command": ["sleep", "600"]}


def server(port: int = 80, protocol: str = "TCP", **more: Any) -> dict[str, Any]:
    ports = [{"name": "web", "containerPort": port, "protocol": protocol, **more}]
    return {"name": "web", "image": "nginx", "ports": ports}


def start(api: Connection, namespace: str, name: str, *containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A new pod that runs and is ready."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    body = {"terminationGracePeriodSeconds": 0, "containers": list(containers), **spec}
    api.do("POST", path, {"metadata": {"name": name, "labels": {"app": name}}, "spec": body})

    def ready() -> dict[str, Any] | None:
        pod: dict[str, Any] = api.do("GET", f"{path}/{name}")
        conditions = {item["type"]: item["status"] for item in pod["status"].get("conditions", ())}
        return pod if conditions.get("Ready") == "True" else None

    result: dict[str, Any] = eventually(ready)
    return result


def serve(api: Connection, namespace: str, name: str, **spec: Any) -> dict[str, Any]:
    body = {"selector": {"app": name}, "ports": [{"port": 80}], **spec}
    path = f"/api/v1/namespaces/{namespace}/services"
    return dict(api.do("POST", path, {"metadata": {"name": name}, "spec": body}))


def test_the_api_has_a_service_and_endpoints(api: Connection) -> None:
    service = api.do("GET", "/api/v1/namespaces/default/services/kubernetes")
    assert [(port["name"], port["port"]) for port in service["spec"]["ports"]] == [("https", 443)]
    endpoints = api.do("GET", "/api/v1/namespaces/default/endpoints/kubernetes")["subsets"]
    slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
    result = api.do("GET", slices, labelSelector="kubernetes.io/service-name=kubernetes")["items"]
    addresses = {address["ip"] for subset in endpoints for address in subset["addresses"]}
    assert addresses == {entry for item in result for end in item["endpoints"] for entry in end["addresses"]} != set()
    assert {port["port"] for item in result for port in item.get("ports") or ()} == {
        port["port"] for subset in endpoints for port in subset["ports"]
    }


def addresses(api: Connection, namespace: str, name: str) -> tuple[set[str], set[str]]:
    """The addresses of a Service by its Endpoints and by its slices."""
    subsets = api.ask("GET", f"/api/v1/namespaces/{namespace}/endpoints/{name}").body.get("subsets") or ()
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    items = api.do("GET", slices, labelSelector=f"kubernetes.io/service-name={name}")["items"]
    return (
        {item["ip"] for subset in subsets for item in subset.get("addresses", ())},
        {entry for item in items for end in item.get("endpoints") or () for entry in end["addresses"]},
    )


def test_slices_and_endpoints_follow_the_pods(api: Connection, namespace: str) -> None:
    serve(api, namespace, "web")
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    eventually(lambda: len(api.do("GET", slices)["items"]) == 1)
    endpoints = f"/api/v1/namespaces/{namespace}/endpoints/web"
    eventually(lambda: api.ask("GET", endpoints).status == 200)
    assert api.do("GET", endpoints).get("subsets") is None
    address = start(api, namespace, "web", server())["status"]["podIP"]
    eventually(lambda: addresses(api, namespace, "web") == ({address}, {address}))
    (item,) = api.do("GET", slices)["items"]
    (endpoint,) = item["endpoints"]
    assert (endpoint["conditions"]["ready"], endpoint["targetRef"]["name"]) == (True, "web")
    api.do("DELETE", f"/api/v1/namespaces/{namespace}/pods/web")
    eventually(lambda: addresses(api, namespace, "web") == (set(), set()))
    api.do("DELETE", f"/api/v1/namespaces/{namespace}/services/web")
    eventually(lambda: not api.do("GET", slices)["items"])
    eventually(lambda: api.ask("GET", f"/api/v1/namespaces/{namespace}/endpoints/web").status == 404)


def test_many_services_get_their_endpoints_in_time(api: Connection, namespace: str) -> None:
    """The limit of the wait is the strictest of Kubernetes' spec, where half of 200 Services have 20 s for it."""
    start(api, namespace, "web", server())
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    names = {f"web-{number}" for number in range(200)}
    body = {"selector": {"app": "web"}, "ports": [{"port": 80}]}
    for name in names:
        api.do("POST", f"/api/v1/namespaces/{namespace}/services", {"metadata": {"name": name}, "spec": body})

    def served() -> set[str]:
        items = api.do("GET", slices)["items"]
        return {item["metadata"]["labels"]["kubernetes.io/service-name"] for item in items if item.get("endpoints")}

    eventually(lambda: served() == names, within=20)


def test_one_port_serves_tcp_and_udp(api: Connection, namespace: str) -> None:
    ports = [{"name": word, "port": 80, "protocol": word.upper()} for word in ("tcp", "udp")]
    serve(api, namespace, "both", ports=ports)
    both = server()
    both["ports"].append({"name": "datagrams", "containerPort": 80, "protocol": "UDP"})
    start(api, namespace, "both", both)
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"

    def protocols() -> set[tuple[str, int]]:
        served = [item for item in api.do("GET", slices)["items"] if item.get("endpoints")]
        return {(port["protocol"], port["port"]) for item in served for port in item.get("ports") or ()}

    eventually(lambda: protocols() == {("TCP", 80), ("UDP", 80)})


_ASK = """
import socket
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.settimeout(1)
for _ in range(20):
    client.sendto(b"hostname\\n", ("ADDRESS", 8081))
    try:
        print(client.recv(4096).decode())
        break
    except OSError:
        pass
"""


def test_a_node_reaches_a_pod_by_udp(api: Connection, cluster: Cluster, namespace: str) -> None:
    pod = start(api, namespace, "udp", server(8081, "UDP"))
    script = _ASK.replace("ADDRESS", pod["status"]["podIP"])
    for node in api.do("GET", "/api/v1/nodes")["items"]:
        output = in_node(cluster, node["metadata"]["name"], "python3", "-c", script)
        assert json.loads(output)["pod"] == "udp"


def test_a_pod_resolves_itself_and_the_cluster(api: Connection, cluster: Cluster, namespace: str) -> None:
    headless = {"selector": {"app": "named"}, "clusterIP": "None", "ports": [{"port": 80}]}
    api.do("POST", f"/api/v1/namespaces/{namespace}/services", {"metadata": {"name": "sub"}, "spec": headless})
    pod = start(api, namespace, "named", _SHELL, hostname="querier", subdomain="sub")
    own = pod["status"]["podIP"]
    full = f"querier.sub.{namespace}.svc.cluster.local"

    def lookup(name: str) -> set[str]:
        script = f"import socket; print(*{{a[4][0] for a in socket.getaddrinfo({name!r}, 80, socket.AF_INET)}})"
        arguments = ["kubectl", "exec", "named", "-n", namespace, "--", "python3", "-c", script]
        return set(cluster.run(arguments).stdout.split())

    for name in (full, f"sub.{namespace}.svc.cluster.local", f"sub.{namespace}", "sub"):
        eventually(lambda name=name: lookup(name) == {own})
    service = api.do("GET", "/api/v1/namespaces/default/services/kubernetes")["spec"]["clusterIP"]
    for name in ("kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"):
        assert lookup(name) == {service}
    hosts = cluster.kubectl("exec", "named", "-n", namespace, "--", "cat", "/etc/hosts")
    assert f"{own}\t{full}\tquerier" in hosts
    assert cluster.kubectl("exec", "named", "-n", namespace, "--", "hostname", "-f").strip() == full


def test_a_pod_names_its_own_resolver(api: Connection, cluster: Cluster, namespace: str) -> None:
    options = [{"name": "ndots", "value": "2"}]
    settings = {"nameservers": ["1.1.1.1"], "searches": ["resolv.conf.local"], "options": options}
    start(api, namespace, "resolver", _SHELL, dnsPolicy="None", dnsConfig=settings)
    text = cluster.kubectl("exec", "resolver", "-n", namespace, "--", "cat", "/etc/resolv.conf")
    assert text.splitlines() == ["search resolv.conf.local", "nameserver 1.1.1.1", "options ndots:2"]


def test_one_host_port_on_several_addresses_and_protocols(api: Connection, namespace: str) -> None:
    node = api.do("GET", "/api/v1/nodes")["items"][0]
    name, address = node["metadata"]["name"], node["status"]["addresses"][0]["address"]
    kinds = {
        "loopback": server(8080, hostPort=54323, hostIP="127.0.0.1"),
        "address": server(8080, hostPort=54323, hostIP=address),
        "datagrams": server(8080, "UDP", hostPort=54323, hostIP=address),
    }
    for pod, container in kinds.items():
        start(api, namespace, pod, container, nodeSelector={"kubernetes.io/hostname": name})

    def asked() -> str:
        with socket.create_connection((address, 54323), timeout=2) as client:
            client.sendall(b"hostname\n")
            return str(json.loads(client.recv(4096))["pod"])

    assert eventually(asked) == "address"
