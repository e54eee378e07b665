"""Programs in pods that extend the API, under kubectl: an extension API server, and a conversion webhook."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.driver import Cluster, eventually
from tests.e2e.extension_server import https_server, listed, role_binding

GROUP = "notes.example.com"
PORT = '{"spec": {"port": 81}}'
SERVER = """
import json, ssl, urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
ROOT = "/apis/notes.example.com/v1"
NOTES = {}

def api(method, path, body=None):
    token = open(f"{ACCOUNT}/token").read()
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(f"https://kubernetes.default.svc{path}", data, headers, method=method)
    context = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")
    return json.load(urllib.request.urlopen(request, context=context))

trust = api("GET", "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication")["data"]
NAMES = json.loads(trust["requestheader-allowed-names"])

class Notes(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, value, status=200):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle_request(self):
        length = int(self.headers["content-length"] or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        subject = dict(pair[0] for pair in (self.connection.getpeercert() or {}).get("subject", ()))
        if subject.get("commonName") not in NAMES:
            return self.answer({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 401}, 401)
        path, _, query = self.path.partition("?")
        if path == ROOT:
            verbs = ["create", "delete", "get", "list", "watch"]
            resource = {"name": "notes", "singularName": "note", "kind": "Note", "namespaced": True, "verbs": verbs}
            return self.answer({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "notes.example.com/v1",
                                "resources": [resource]})
        if not path.startswith(ROOT):
            return self.answer({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}, 404)
        user, groups = self.headers["x-remote-user"], self.headers.get_all("x-remote-group")
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
            "user": user, "groups": groups, "resourceAttributes": {"verb": "get", "resource": "notes"}}}
        if not api("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)["status"]["allowed"]:
            return self.answer({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden",
                                "message": f"{user} may not read notes", "code": 403}, 403)
        _, namespace, _, *name = path[len(ROOT) + 1:].split("/")
        if self.command == "POST":
            meta = {**body["metadata"], "namespace": namespace, "uid": str(len(NOTES)), "resourceVersion": "1"}
            NOTES[namespace, meta["name"]] = {**body, "metadata": meta, "author": user}
            return self.answer(NOTES[namespace, meta["name"]], 201)
        if self.command == "DELETE":
            return self.answer(NOTES.pop((namespace, name[0])))
        if name and (namespace, name[0]) not in NOTES:
            return self.answer({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound",
                                "message": f"{name[0]} not found", "code": 404}, 404)
        if name:
            return self.answer(NOTES[namespace, name[0]])
        items = [note for key, note in NOTES.items() if key[0] == namespace]
        if "watch=true" in query:
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for note in items:
                event = json.dumps({"type": "ADDED", "object": note}).encode() + b"\\n"
                self.wfile.write(b"%x\\r\\n%b\\r\\n" % (len(event), event))
            return self.wfile.write(b"0\\r\\n\\r\\n")
        self.answer({"kind": "NoteList", "apiVersion": "notes.example.com/v1", "metadata": {"resourceVersion": "1"},
                     "items": items})

    do_GET = do_POST = do_DELETE = handle_request

server = ThreadingHTTPServer(("", 8443), Notes)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/certificates/tls.crt", "/certificates/tls.key")
context.load_verify_locations(cadata=trust["requestheader-client-ca-file"])
context.verify_mode = ssl.CERT_OPTIONAL
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""

CONVERTER = """
import json, ssl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

def converted(tab, version):
    spec = tab["spec"]
    if version.endswith("/v2"):
        host, _, port = spec["hostPort"].partition(":")
        spec = {"host": host, "port": int(port)}
    else:
        spec = {"hostPort": f"{spec['host']}:{spec['port']}"}
    return {**tab, "apiVersion": version, "spec": spec}

class Converter(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))["request"]
        tabs = [converted(tab, asked["desiredAPIVersion"]) for tab in asked["objects"]]
        response = {"uid": asked["uid"], "result": {"status": "Success"}, "convertedObjects": tabs}
        review = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": response}
        body = json.dumps(review).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

server = ThreadingHTTPServer(("", 8443), Converter)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/certificates/tls.crt", "/certificates/tls.key")
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""


@pytest.fixture
def notes(cluster: Cluster, namespace: str) -> Iterator[str]:
    """A registered extension API server; the name of its namespace."""
    objects, authority = https_server("notes", SERVER, namespace)
    service = {
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": f"v1.{GROUP}"},
        "spec": {
            "group": GROUP, "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100,
            "caBundle": authority, "service": {"name": "notes", "namespace": namespace},
        },
    }  # fmt: skip
    delegator = role_binding(namespace, f"notes-{namespace}", "system:auth-delegator")
    reader = role_binding(namespace, f"notes-{namespace}", "extension-apiserver-authentication-reader", "kube-system")
    cluster.apply(listed(service, delegator, reader))
    cluster.apply(listed(*objects), "-n", namespace)
    yield namespace
    cluster.kubectl("delete", "apiservice", f"v1.{GROUP}")
    cluster.kubectl("delete", "clusterrolebinding", f"notes-{namespace}")
    cluster.kubectl("delete", "rolebinding", f"notes-{namespace}", "-n", "kube-system")


def _condition(cluster: Cluster, reason: str) -> bool:
    conditions = cluster.get("apiservice", f"v1.{GROUP}").get("status", {}).get("conditions", [{}])
    return bool(conditions[0].get("reason") == reason)


def test_extension_api_server_serves_its_group(cluster: Cluster, notes: str) -> None:
    cluster.kubectl("wait", "--for=condition=Available", f"apiservice/v1.{GROUP}", "--timeout=90s")
    assert f"notes {GROUP}/v1 true Note" in " ".join(cluster.kubectl("api-resources", f"--api-group={GROUP}").split())
    note = {"apiVersion": f"{GROUP}/v1", "kind": "Note", "metadata": {"name": "first"}}
    acting = ("--as=ann", "--as-group=system:masters")
    cluster.kubectl("create", "--validate=false", "-n", notes, "-f", "-", *acting, stdin=json.dumps(note))
    assert cluster.get("note", "first", "-n", notes)["author"] == "ann"
    assert "first" in cluster.kubectl("get", "notes", "-n", notes, "--watch")
    refused = cluster.refused("get", "notes", "-n", notes, "--as=bob")
    assert 'User "bob" cannot list resource "notes" in API group "notes.example.com"' in refused
    cluster.kubectl("delete", "note", "first", "-n", notes)
    cluster.kubectl("delete", "pod", "notes", "-n", notes)
    eventually(lambda: _condition(cluster, "MissingEndpoints"))
    assert "the server is currently unable to handle the request" in cluster.refused(
        "get", "--raw", f"/apis/{GROUP}/v1/namespaces/{notes}/notes"
    )


def _definition(namespace: str, authority: str) -> dict[str, Any]:
    def version(name: str, **fields: str) -> dict[str, Any]:
        spec = {"type": "object", "properties": {field: {"type": kind} for field, kind in fields.items()}}
        schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
        return {"name": name, "served": True, "storage": name == "v2", "schema": schema}

    service = {"name": "converter", "namespace": namespace, "path": "/convert"}
    webhook = {"clientConfig": {"service": service, "caBundle": authority}, "conversionReviewVersions": ["v1"]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "tabs.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "tabs", "kind": "Tab"},
            "conversion": {"strategy": "Webhook", "webhook": webhook},
            "versions": [version("v1", hostPort="string"), version("v2", host="string", port="integer")],
        },
    }  # fmt: skip


def test_conversion_webhook_of_a_pod_converts(cluster: Cluster, namespace: str) -> None:
    objects, authority = https_server("converter", CONVERTER, namespace)
    cluster.apply(listed(*objects), "-n", namespace)
    cluster.apply(json.dumps(_definition(namespace, authority)))
    try:
        cluster.ready("converter", namespace=namespace)
        tab = {"apiVersion": "example.com/v1", "kind": "Tab", "metadata": {"name": "a"}, "spec": {"hostPort": "h:80"}}
        create = ["kubectl", "create", "-n", namespace, "-f", "-"]
        eventually(lambda: cluster.run(create, stdin=json.dumps(tab)).returncode == 0)
        spec = cluster.kubectl("get", "tabs.v2.example.com", "a", "-n", namespace, "-o", "jsonpath={.spec}")
        assert json.loads(spec) == {"host": "h", "port": 80}
        cluster.kubectl("patch", "tabs.v2.example.com", "a", "-n", namespace, "--type=merge", "-p", PORT)
        spec = cluster.kubectl("get", "tabs.v1.example.com", "-n", namespace, "-o", "jsonpath={.items[*].spec}")
        assert json.loads(spec) == {"hostPort": "h:81"}
        cluster.kubectl("delete", "pod", "converter", "-n", namespace, "--wait")
        cluster.kubectl("label", "tabs.v2.example.com", "a", "-n", namespace, "changed=yes")
        refused = cluster.refused("get", "tabs.v1.example.com", "a", "-n", namespace)
        url = f"https://converter.{namespace}.svc:443/convert?timeout=30s"
        assert f'conversion webhook for example.com/v2, Kind=Tab failed: Post "{url}": ' in refused
    finally:
        cluster.kubectl("delete", "crd", "tabs.example.com")
