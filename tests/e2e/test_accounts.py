"""ServiceAccounts: tokens, their review, the root certificate of each namespace, and reviews of rights."""

import base64
import json
from typing import Any

from tests.e2e.connection import Connection
from tests.e2e.driver import eventually

_AUTHORIZATION = "/apis/authorization.k8s.io/v1"


def test_a_requested_token_passes_its_review(api: Connection, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    uid = api.do("POST", path, {"metadata": {"name": "robot"}})["metadata"]["uid"]
    request = {"spec": {"audiences": [], "expirationSeconds": 3600}}
    status = api.do("POST", f"{path}/robot/token", request)["status"]
    payload = status["token"].split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    assert claims["sub"] == f"system:serviceaccount:{namespace}:robot"
    review = api.do("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": status["token"]}})
    assert review["status"]["authenticated"] is True and "error" not in review["status"]
    user = review["status"]["user"]
    assert (user["username"], user["uid"]) == (claims["sub"], uid)
    assert set(user["groups"]) >= {"system:serviceaccounts", f"system:serviceaccounts:{namespace}"}
    api.do("DELETE", f"{path}/robot")
    eventually(
        lambda: (
            not api.do("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": status["token"]}})[
                "status"
            ].get("authenticated")
        )
    )


def test_every_namespace_keeps_the_root_certificate(api: Connection, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps/kube-root-ca.crt"
    first = eventually(lambda: (answer := api.ask("GET", path)).status == 200 and answer.body)
    assert "BEGIN CERTIFICATE" in first["data"]["ca.crt"]
    api.do("DELETE", path)
    eventually(lambda: (answer := api.ask("GET", path)).status == 200 and answer.body["data"] == first["data"])
    api.do("PATCH", path, {"data": {"ca.crt": ""}})
    eventually(lambda: api.do("GET", path)["data"] == first["data"])


def test_reviews_agree_with_the_rights_of_an_account(api: Connection, namespace: str) -> None:
    user = f"system:serviceaccount:{namespace}:default"
    attributes = {"namespace": namespace, "verb": "list", "resource": "configmaps", "version": "v1"}

    def allowed(kind: str, path: str, **spec: Any) -> bool:
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "metadata": {"namespace": namespace}}
        answer = api.do("POST", path, {**body, "spec": {"resourceAttributes": attributes, **spec}})
        return bool(answer["status"]["allowed"])

    local = f"{_AUTHORIZATION}/namespaces/{namespace}/localsubjectaccessreviews"
    answers = [
        allowed("SubjectAccessReview", f"{_AUTHORIZATION}/subjectaccessreviews", user=user),
        allowed("LocalSubjectAccessReview", local, user=user),
    ]
    assert answers == [False, False]
    assert allowed("SelfSubjectAccessReview", f"{_AUTHORIZATION}/selfsubjectaccessreviews")
    role = {
        "metadata": {"name": "read"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}],
    }
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    api.do("POST", f"{rbac}/roles", role)
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "read"}
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
    api.do("POST", f"{rbac}/rolebindings", {"metadata": {"name": "b"}, "roleRef": reference, "subjects": [subject]})
    assert allowed("SubjectAccessReview", f"{_AUTHORIZATION}/subjectaccessreviews", user=user)
    assert allowed("LocalSubjectAccessReview", local, user=user)
