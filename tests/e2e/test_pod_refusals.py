"""Objects that the API refuses, with the status of Kubernetes."""

from typing import Any

import pytest
from tests.e2e.connection import Connection


def _pod(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "nginx"}], **spec}}


_SYSCTLS = [{"name": "foo-", "value": "bar"}, {"name": "kernel.shmmax", "value": "100000000"}]
_REFUSED: dict[str, tuple[str, dict[str, Any], int, str]] = {
    # The plural, the object, the status, and a part of the message.
    "empty key of a ConfigMap": ("configmaps", {"metadata": {"name": "c"}, "data": {"": "v"}}, 422, "data[]: Invalid"),
    "empty key of a Secret": ("secrets", {"metadata": {"name": "s"}, "stringData": {"": "v"}}, 422, "data[]: Invalid"),
    "unknown RuntimeClass": ("pods", _pod(runtimeClassName="nobody"), 403, 'RuntimeClass "nobody" not found'),
    "invalid sysctl": ("pods", _pod(securityContext={"sysctls": _SYSCTLS}), 422, "sysctls[0].name: Invalid value"),
}


@pytest.mark.parametrize("case", _REFUSED)
def test_the_api_refuses(api: Connection, namespace: str, case: str) -> None:
    plural, body, status, message = _REFUSED[case]
    answer = api.ask("POST", f"/api/v1/namespaces/{namespace}/{plural}", body)
    assert (answer.status, message in answer.body["message"]) == (status, True), answer.body
