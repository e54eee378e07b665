"""What admission adds to the audit event of a request: Pod Security, policies and webhooks."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.embedded.apiserver.admission.test_policies import FEW, bind, binding, config_map, policy

from podwire.embedded.apiserver.audit import AuditLog
from podwire.embedded.apiserver.auditrules import AuditSettings
from podwire.embedded.apiserver.calls import UserInfo
from podwire.http.message import Request
from podwire.runtime.clock import SystemClock

Object = dict[str, Any]
Play = Callable[..., None]
NAMESPACE = "/api/v1/namespaces/default"
LABEL = "pod-security.kubernetes.io/"
PRIVILEGED = 'privileged (container "c" must not set securityContext.privileged=true)'
FAILURE = "validation.policy.admission.k8s.io/validation_failure"


class Audited:
    """Requests of an administrator through an audit log."""

    def __init__(self, api: Any, file: Path) -> None:
        self._file = file
        user = UserInfo("admin", ("system:masters",))
        self._log = AuditLog(AuditSettings(file=str(file)), lambda _: user, api.server.api.handle, SystemClock())
        self._certificate = {"subject": ((("commonName", "admin"),), (("organizationName", "system:masters"),))}

    async def post(self, path: str, body: Object) -> tuple[int, Object]:
        """The status of the answer, and the annotations of the event."""
        request = Request("POST", path, {}, json.dumps(body).encode())
        request.peer_certificate = self._certificate
        result: Any = self._log.handle(request)
        answer = await result if isinstance(result, Awaitable) else result
        event = json.loads(self._file.read_text().splitlines()[-1])
        return answer.status, event.get("annotations", {})


def pod(name: str, *, privileged: bool) -> Object:
    container = {"name": "c", "image": "i", "securityContext": {"privileged": privileged}}
    return {"metadata": {"name": name}, "spec": {"containers": [container]}}


def workload() -> Object:
    template = {**pod("x", privileged=True), "metadata": {"labels": {"a": "b"}}}
    return {"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}}


def test_what_violates_the_audit_level_is_in_the_event(play: Play, tmp_path: Path) -> None:
    async def scenario(api: Any) -> None:
        labels = {LABEL + "audit": "baseline", LABEL + "enforce": "privileged"}
        patch = {"metadata": {"labels": labels}}
        await api("PATCH", NAMESPACE, patch, content_type="application/merge-patch+json")
        audited = Audited(api, tmp_path / "audit.log")
        violation = {LABEL + "audit-violations": f'would violate PodSecurity "baseline:latest": {PRIVILEGED}'}
        enforced = {LABEL + "enforce-policy": "privileged:latest"}
        assert await audited.post(f"{NAMESPACE}/pods", pod("a", privileged=True)) == (201, enforced | violation)
        assert await audited.post(f"{NAMESPACE}/pods", pod("b", privileged=False)) == (201, enforced)
        deployments = "/apis/apps/v1/namespaces/default/deployments"
        assert await audited.post(deployments, workload()) == (201, violation)
        patch["metadata"]["labels"][LABEL + "enforce"] = "baseline"
        await api("PATCH", NAMESPACE, patch, content_type="application/merge-patch+json")
        enforced = {LABEL + "enforce-policy": "baseline:latest"}
        assert await audited.post(f"{NAMESPACE}/pods", pod("c", privileged=True)) == (403, enforced | violation)

    play(scenario)


@pytest.mark.parametrize(("actions", "status"), [(("Audit",), 201), (("Audit", "Deny"), 422), (("Deny",), 422)])
def test_failed_validations_are_in_the_event(play: Play, tmp_path: Path, actions: tuple[str, ...], status: int) -> None:
    async def scenario(api: Any) -> None:
        await bind(api, policy({"expression": "true"}, FEW), binding(actions=actions))
        audited = Audited(api, tmp_path / "audit.log")
        assert await audited.post(f"{NAMESPACE}/configmaps", config_map("small", size="small")) == (201, {})
        got, annotations = await audited.post(f"{NAMESPACE}/configmaps", config_map("big", size="huge"))
        assert got == status
        if "Audit" not in actions:
            assert annotations == {}
            return
        assert json.loads(annotations[FAILURE]) == [
            {
                "message": f"failed expression: {FEW['expression']}", "policy": "p", "binding": "b",
                "expressionIndex": 1, "validationActions": list(actions),
            }
        ]  # fmt: skip

    play(scenario)


def test_annotations_of_policies_are_in_the_event(play: Play, tmp_path: Path) -> None:
    async def scenario(api: Any) -> None:
        own = [
            {"key": "size", "valueExpression": "'size ' + object.data.size"},
            {"key": "none", "valueExpression": "null"},
        ]
        await bind(api, policy({"expression": "true"}, auditAnnotations=own), binding(), binding(name="c"))
        audited = Audited(api, tmp_path / "audit.log")
        expected = {"p/size": "size small"}
        assert await audited.post(f"{NAMESPACE}/configmaps", config_map("a", size="small")) == (201, expected)

    play(scenario)


def test_annotations_of_webhooks_are_in_the_event(play: Play, serve: Any, configure: Any, tmp_path: Path) -> None:
    async def scenario(api: Any) -> None:
        answer = {"allowed": True, "auditAnnotations": {"seen": "yes"}}
        async with serve(lambda *_: answer) as hook:
            await configure(api, hook.url)
            audited = Audited(api, tmp_path / "audit.log")
            status, annotations = await audited.post(f"{NAMESPACE}/configmaps", config_map("a"))
        assert (status, list(annotations.values())) == (201, ["yes"])
        assert next(iter(annotations)).endswith("/seen")

    play(scenario)
