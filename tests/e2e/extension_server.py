"""Objects of a program in a pod that extends the API."""

import base64
import datetime
import json
from typing import Any

from podwire.embedded.apiserver import certificates


def listed(*objects: dict[str, Any]) -> str:
    """The objects as the text of one list."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


def https_server(name: str, program: str, namespace: str) -> tuple[list[dict[str, Any]], str]:
    """The objects of a pod with an HTTPS server behind a Service, and its authority's certificate in base64."""
    now = datetime.datetime.now(datetime.UTC)
    root = certificates.make_authority(f"{name} authority", now)
    pair = certificates.issue(root, name, (), (f"{name}.{namespace}.svc",), "server", now)
    secret = {"tls.crt": pair.certificate, "tls.key": pair.key}
    labels = {"app": name}
    objects: list[dict[str, Any]] = [
        {
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
            "data": {key: base64.b64encode(value).decode() for key, value in secret.items()},
        },
        {
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"selector": labels, "ports": [{"port": 443, "targetPort": 8443}]},
        },
        {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "volumes": [{"name": "certificates", "secret": {"secretName": name}}],
                "containers": [{
                    "name": "server", "image": "python:3", "command": ["python3", "-c", program],
                    "volumeMounts": [{"name": "certificates", "mountPath": "/certificates"}],
                    "readinessProbe": {"tcpSocket": {"port": 8443}, "periodSeconds": 1},
                }],
            },
        },
    ]  # fmt: skip
    return objects, base64.b64encode(root.certificate).decode()


def role_binding(namespace: str, name: str, role: str, place: str = "") -> dict[str, Any]:
    """Binds a role to the default account of ``namespace``: a Role of the namespace ``place``, else a ClusterRole."""
    kind = "Role" if place else "ClusterRole"
    meta = {"name": name, **({"namespace": place} if place else {})}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": f"{kind}Binding", "metadata": meta,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
    }  # fmt: skip
