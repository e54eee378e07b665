"""A custom kind with two versions, ``Tab``, and the server that converts its objects."""

import json
from collections.abc import Callable
from typing import Any

from podwire.http.message import Request, Response

Object = dict[str, Any]

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP = "example.com"
V1, V2 = (f"/apis/{GROUP}/{version}/namespaces/default/tabs" for version in ("v1", "v2"))


class Converter:
    """v1 has ``spec.hostPort``, v2 has ``spec.host`` and ``spec.port``; keeps all requests."""

    def __init__(self) -> None:
        self.asked: list[Object] = []
        self.change: Callable[[Object], Any] = lambda response: response
        self.url = ""
        self.bundle = ""
        """The authority of the server's certificate."""

    def answer(self, request: Request) -> Response:
        asked = json.loads(request.body)["request"]
        self.asked.append(asked)
        results = [self.convert(obj, asked["desiredAPIVersion"]) for obj in asked["objects"]]
        response = {"uid": asked["uid"], "result": {"status": "Success"}, "convertedObjects": results}
        changed = self.change(response)
        if isinstance(changed, Response):
            return changed
        review = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": changed}
        return Response(200, json.dumps(review).encode())

    def convert(self, obj: Object, version: str) -> Object:
        spec = dict(obj.get("spec") or {})
        if version.endswith("v2"):
            host, _, port = spec.pop("hostPort", ":").partition(":")
            spec |= {"host": host, "port": port, "unknown": "pruned"}
        else:
            spec["hostPort"] = f"{spec.pop('host', '')}:{spec.pop('port', '')}"
        return {**obj, "apiVersion": version, "spec": spec}

    @property
    def sizes(self) -> list[int]:
        """The numbers of objects in the requests so far, which are forgotten."""
        asked, self.asked = self.asked, []
        return [len(request["objects"]) for request in asked]


def definition(url: str, bundle: str = "") -> Object:
    def version(name: str, *fields: str) -> Object:
        spec: Object = {"type": "object", "properties": {field: {"type": "string"} for field in (*fields, "note")}}
        spec["properties"]["replicas"] = {"type": "integer"}
        return {
            "name": name, "served": True, "storage": name == "v2",
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "spec": spec, "status": {"type": "object", "properties": {"ready": {"type": "string"}}}}}},
            "subresources": {"status": {}, "scale": {
                "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
        }  # fmt: skip

    webhook = {"clientConfig": {"url": url, "caBundle": bundle}, "conversionReviewVersions": ["v1"]}
    return {
        "metadata": {"name": f"tabs.{GROUP}"},
        "spec": {
            "group": GROUP, "scope": "Namespaced", "names": {"plural": "tabs", "kind": "Tab"},
            "conversion": {"strategy": "Webhook", "webhook": webhook},
            "versions": [version("v1", "hostPort"), version("v2", "host", "port")],
        },
    }  # fmt: skip


def tab(name: str, **spec: Any) -> Object:
    return {"apiVersion": f"{GROUP}/v1", "kind": "Tab", "metadata": {"name": name}, "spec": spec}
