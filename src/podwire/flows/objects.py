"""The objects of numbered flows in a cluster: namespace, policy, Service, Ingress, and three pods on each node. Pure.

Everything is in a namespace of its own, so that one deletion removes it, and its policy touches no other pod. The
policy allows the ports of the servers but one, :data:`~podwire.flows.messages.DENIED_PORT`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from podwire.cluster.names import FLOWS_ROLE
from podwire.flows.messages import HTTP_PORT, PORT
from podwire.flows.plan import INGRESS_HOST

Json = dict[str, Any]
"""An object in its API form."""

NAMESPACE = "podwire-flows"
NAME = "podwire-flows"
_LABEL = "app.kubernetes.io/name"


class FlowProgram(msgspec.Struct, frozen=True, kw_only=True):
    """How a container runs ``podwire``: image, command before the arguments, and environment.

    An empty command is the image's entry point.
    """

    image: str
    command: tuple[str, ...] = ("podwire",)
    environment: Mapping[str, str] = {}
    pull_policy: str = ""
    pull_secrets: tuple[str, ...] = ()


def namespace() -> Json:
    """The namespace; recorders need its level of Pod Security."""
    labels = {_LABEL: NAME, "pod-security.kubernetes.io/enforce": "privileged"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}


def policy() -> Json:
    """The NetworkPolicy that denies one port of the servers."""
    ports = [{"protocol": protocol, "port": port} for protocol, port in _PORTS]
    spec = {
        "podSelector": {"matchLabels": {FLOWS_ROLE: "server"}},
        "policyTypes": ["Ingress"],
        "ingress": [{"ports": ports}],
    }
    return _object("networking.k8s.io/v1", "NetworkPolicy", spec)


def service(balancer_class: str | None) -> Json:
    """The Service of the servers, with an address of a load balancer of a class (empty: the default).

    None: ``NodePort``, since an address may cost money in a cloud.
    """
    ports = [
        {"name": f"{protocol.lower()}-{port}", "protocol": protocol, "port": port, "targetPort": port}
        for protocol, port in _PORTS
    ]
    kind = "NodePort" if balancer_class is None else "LoadBalancer"
    spec: Json = {"type": kind, "selector": {FLOWS_ROLE: "server"}, "ports": ports}
    if balancer_class:
        spec["loadBalancerClass"] = balancer_class
    return _object("v1", "Service", spec)


def ingress(ingress_class: str) -> Json:
    """The Ingress of the servers, of a class (empty: the default)."""
    backend = {"service": {"name": NAME, "port": {"number": HTTP_PORT}}}
    paths = [{"path": "/", "pathType": "Prefix", "backend": backend}]
    spec: Json = {"rules": [{"host": INGRESS_HOST, "http": {"paths": paths}}]}
    if ingress_class:
        spec["ingressClassName"] = ingress_class
    return _object("networking.k8s.io/v1", "Ingress", spec)


def server_pod(program: FlowProgram, node: str) -> Json:
    """The pod of a node that answers."""
    probe = {"readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1}}
    return _pod(program, node, "server", ["serve"], probe)


def sender_pod(program: FlowProgram, node: str, arguments: Sequence[str]) -> Json:
    """The pod of a node that sends to targets."""
    return _pod(program, node, "sender", ["send", *arguments], {})


def recorder_pod(program: FlowProgram, node: str) -> Json:
    """The pod of a node that records the changes of the node's kernel."""
    context = {"securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}}
    pod = _pod(program, node, "recorder", ["record"], context)
    pod["spec"]["hostNetwork"] = True
    return pod


def pod_name(role: str, node: str) -> str:
    """The name of the pod of a role (``server``, ``sender``, ``recorder``) on a node."""
    return f"{role}-{node}"


_PORTS = (("TCP", PORT), ("UDP", PORT), ("TCP", HTTP_PORT))


def _object(version: str, kind: str, spec: Json) -> Json:
    meta = {"name": NAME, "namespace": NAMESPACE, "labels": {_LABEL: NAME}}
    return {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec}


def _pod(program: FlowProgram, node: str, role: str, arguments: Sequence[str], more: Json) -> Json:
    environment = [{"name": name, "value": value} for name, value in program.environment.items()]
    container: Json = {"name": role, "image": program.image, "args": ["flows", *arguments], **more}
    if program.command:
        container["command"] = list(program.command)
    if environment:
        container["env"] = environment
    if program.pull_policy:
        container["imagePullPolicy"] = program.pull_policy
    spec: Json = {
        "nodeName": node,
        "containers": [container],
        "tolerations": [{"operator": "Exists"}],
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
    }
    if program.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in program.pull_secrets]
    meta = {"name": pod_name(role, node), "namespace": NAMESPACE, "labels": {_LABEL: NAME, FLOWS_ROLE: role}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
