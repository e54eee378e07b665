"""The proxy of the API to pods and Services: paths, schemes, links and what is refused."""

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.e2e.driver import Cluster

from podwire.embedded.apiserver import certificates

_SERVER = """
import http.server, ssl, sys, threading

class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        status, kind, body = 200, "text/plain", (self.path + " by " + self.server.scheme).encode()
        if self.path == "/page":
            kind, body = "text/html", b"<a href='/next'>next</a>"
        self.send_response(302 if self.path == "/old" else status)
        self.send_header("Content-Type", kind)
        if self.path == "/old":
            self.send_header("Location", "/new")
        self.end_headers()
        self.wfile.write(body)

for port, scheme in ((8080, "http"), (8443, "https")):
    server = http.server.ThreadingHTTPServer(("0.0.0.0", port), Page)
    server.scheme = scheme
    if scheme == "https":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*sys.argv[1:3])
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever).start()
"""


@pytest.fixture
def page(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[str]:
    """The path of a namespace with a pod that speaks HTTP and HTTPS, and its Service."""
    authority = certificates.make_authority("page", datetime.now(UTC))
    pair = certificates.issue(authority, "page", (), ("localhost",), "server", datetime.now(UTC))
    certificate, key = certificates.write_pair(tmp_path, "page", pair)
    command = json.dumps([sys.executable, "-c", _SERVER, str(certificate), str(key)])
    cluster.apply(
        f"""
apiVersion: v1
kind: Pod
metadata: {{name: page, labels: {{app: page}}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: python:3
      command: {command}
      ports: [{{containerPort: 8080}}]
      readinessProbe: {{tcpSocket: {{port: 8443}}, periodSeconds: 1}}
---
apiVersion: v1
kind: Service
metadata: {{name: 1page}}
spec:
  selector: {{app: page}}
  ports: [{{name: web, port: 80, targetPort: 8080}}, {{name: tls, port: 443, targetPort: 8443}}]
""",
        "-n",
        namespace,
    )
    cluster.ready("page", namespace=namespace)
    yield f"/api/v1/namespaces/{namespace}"


def test_pods_and_services_are_reached_through_the_api(cluster: Cluster, page: str) -> None:
    for name, expected in (
        ("pods/page", "http"),
        ("pods/page:8080", "http"),
        ("pods/https:page:8443", "https"),
        ("services/1page:80", "http"),
        ("services/1page:web", "http"),
        ("services/https:1page:tls", "https"),
    ):
        assert cluster.kubectl("get", "--raw", f"{page}/{name}/proxy/a/?x=1") == f"/a/?x=1 by {expected}"
    linked = cluster.kubectl("get", "--raw", f"{page}/pods/page/proxy/page")
    assert linked == f'<a href="{page}/pods/page/proxy/next">next</a>'
    # kubectl follows the redirect, which leads through the proxy again.
    assert cluster.kubectl("get", "--raw", f"{page}/services/1page:web/proxy/old") == "/new by http"


def test_port_without_listener_is_unavailable(cluster: Cluster, page: str) -> None:
    assert "error trying to reach service" in cluster.refused("get", "--raw", f"{page}/pods/page:9/proxy/")
    assert "no endpoints available" in cluster.refused("get", "--raw", f"{page}/services/1page/proxy/")


def test_logs_of_a_node_are_files(cluster: Cluster, page: str) -> None:
    pod = cluster.get("pod", "page", "-n", page.rpartition("/")[2])
    node, meta = pod["spec"]["nodeName"], pod["metadata"]
    logs = f"/api/v1/nodes/{node}/proxy/logs"
    folder = f"pods/{meta['namespace']}_page_{meta['uid']}/main"
    assert '<a href="pods/">pods/</a>' in cluster.kubectl("get", "--raw", f"{logs}/")
    assert '<a href="0.log">0.log</a>' in cluster.kubectl("get", "--raw", f"{logs}/{folder}/")
    assert cluster.kubectl("get", "--raw", f"/api/v1/nodes/{node}:10250/proxy/logs/") != ""
