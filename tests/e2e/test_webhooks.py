"""Admission webhooks of a pod: a real HTTPS server behind a Service, under kubectl."""

import base64
import datetime
import json
from typing import Any

import pytest
from tests.e2e.driver import Cluster, eventually

from podwire.embedded.apiserver import certificates

SERVER = """
import base64, json, ssl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Hook(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))["request"]
        answer = {"uid": asked["uid"], "allowed": True}
        data = (asked["object"] or {}).get("data") or {}
        if self.path.startswith("/mutating"):
            patch = [{"op": "add", "path": "/data/owner", "value": asked["userInfo"]["username"]}]
            answer |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
        elif data.get("size") == "huge":
            answer |= {"allowed": False, "status": {"message": "size must not be huge", "code": 403}}
        else:
            answer["warnings"] = ["owner is " + data.get("owner", "missing")]
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}
        body = json.dumps(review).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

server = ThreadingHTTPServer(("", 8443), Hook)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/certificates/tls.crt", "/certificates/tls.key")
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""


def _text(*objects: dict[str, Any]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


@pytest.fixture
def authority(cluster: Cluster, namespace: str) -> str:
    """A webhook server that is ready; returns the certificate of its authority in base64."""
    now = datetime.datetime.now(datetime.UTC)
    root = certificates.make_authority("webhooks", now)
    pair = certificates.issue(root, "hook", (), (f"hook.{namespace}.svc",), "server", now)
    secret = {"tls.crt": pair.certificate, "tls.key": pair.key}
    labels = {"app": "hook"}
    cluster.apply(
        _text(
            {
                "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hook"},
                "data": {name: base64.b64encode(value).decode() for name, value in secret.items()},
            },
            {
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": "hook"},
                "spec": {"selector": labels, "ports": [{"port": 443, "targetPort": 8443}]},
            },
            {
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "hook", "labels": labels},
                "spec": {
                    "terminationGracePeriodSeconds": 0,
                    "volumes": [{"name": "certificates", "secret": {"secretName": "hook"}}],
                    "containers": [{
                        "name": "hook", "image": "python:3", "command": ["python3", "-c", SERVER],
                        "volumeMounts": [{"name": "certificates", "mountPath": "/certificates"}],
                        "readinessProbe": {"tcpSocket": {"port": 8443}, "periodSeconds": 1},
                    }],
                },
            },
        ),
        "-n", namespace,
    )  # fmt: skip
    cluster.ready("hook", namespace=namespace)
    eventually(lambda: _endpoints(cluster, namespace))
    return base64.b64encode(root.certificate).decode()


def _endpoints(cluster: Cluster, namespace: str) -> list[Any]:
    slices = cluster.get("endpointslices", "-n", namespace, "-l", "kubernetes.io/service-name=hook")["items"]
    return [
        item
        for endpoint_slice in slices
        for item in endpoint_slice.get("endpoints") or ()
        if item["conditions"]["ready"]
    ]


def _configuration(kind: str, namespace: str, authority: str, path: str) -> dict[str, Any]:
    service = {"name": "hook", "namespace": namespace, "path": path}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": namespace},
        "webhooks": [{
            "name": "hook.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"service": service, "caBundle": authority},
            "rules": [{
                "operations": ["CREATE", "UPDATE"], "apiGroups": [""], "apiVersions": ["v1"],
                "resources": ["configmaps"],
            }],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        }],
    }  # fmt: skip


def test_webhooks_of_a_pod_change_warn_and_refuse(cluster: Cluster, namespace: str, authority: str) -> None:
    kinds = ("Mutating", "Validating")
    configurations = [_configuration(kind, namespace, authority, f"/{kind.lower()}") for kind in kinds]
    cluster.apply(_text(*configurations))
    try:
        created = cluster.run(["kubectl", "create", "configmap", "small", "-n", namespace, "--from-literal=size=small"])
        assert created.returncode == 0, created.stderr
        user = cluster.get("configmap", "small", "-n", namespace)["data"]["owner"]
        assert created.stderr == f"Warning: owner is {user}\n"
        refused = cluster.refused("create", "configmap", "big", "-n", namespace, "--from-literal=size=huge")
        assert 'admission webhook "hook.example.com" denied the request: size must not be huge' in refused
        cluster.kubectl("delete", "pod", "hook", "-n", namespace, "--wait")
        eventually(lambda: not _endpoints(cluster, namespace))
        refused = cluster.refused("create", "configmap", "late", "-n", namespace)
        url = f"https://hook.{namespace}.svc:443/mutating?timeout=10s"
        reported = (
            f'failed calling webhook "hook.example.com": failed to call webhook: Post "{url}": no endpoints available'
        )
        assert reported in refused
    finally:
        for kind in kinds:
            cluster.kubectl("delete", f"{kind.lower()}webhookconfiguration", namespace)
    cluster.kubectl("create", "configmap", "late", "-n", namespace)
