"""A webhook server that a test scripts."""

import base64
import json
from collections.abc import Callable
from typing import Any

from podwire.http.message import Request, Response

Object = dict[str, Any]
Play = Callable[..., None]
Script = Callable[[str, Object], Any]

MAPS = "/api/v1/namespaces/default/configmaps"
HOOKS = "/apis/admissionregistration.k8s.io/v1"
MERGE = {"content_type": "application/merge-patch+json"}
RULE = {"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}


def patched(*operations: Object) -> Object:
    """An answer that changes the object by a JSON patch."""
    text = base64.b64encode(json.dumps(operations).encode()).decode()
    return {"allowed": True, "patchType": "JSONPatch", "patch": text}


class ScriptedWebhook:
    """A server that answers reviews as a function of path and request says; keeps all requests."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[tuple[str, Object]] = []
        self.url = ""

    async def answer(self, request: Request) -> Response:
        path, asked = request.raw_path, json.loads(request.body)["request"]
        self.asked.append((path, asked))
        answer = self.script(path, asked)
        if hasattr(answer, "__await__"):
            answer = await answer
        if isinstance(answer, Response):
            return answer
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
                  "response": {"uid": asked["uid"], **answer}}  # fmt: skip
        return Response(200, json.dumps(review).encode())
