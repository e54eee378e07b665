import pytest

from podwire.embedded.apiserver.authorization.requests import attributes_of
from podwire.embedded.apiserver.authorization.rules import RequestAttributes
from podwire.http.message import Request

PODS = "/api/v1/namespaces/shop/pods"


def on(verb: str, resource: str, namespace: str = "", name: str = "", group: str = "") -> RequestAttributes:
    plural, _, subresource = resource.partition("/")
    return RequestAttributes(verb, group, "v1", plural, subresource, namespace, name)


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ("GET /api/v1/pods", on("list", "pods")),
        (f"GET {PODS}", on("list", "pods", "shop")),
        (f"GET {PODS}?watch=true", on("watch", "pods", "shop")),
        (f"GET {PODS}?watch=True", on("watch", "pods", "shop")),
        (f"GET {PODS}?watch=0", on("list", "pods", "shop")),
        ("GET /api/v1/watch/namespaces/shop/pods", on("watch", "pods", "shop")),
        (f"GET {PODS}/web-0", on("get", "pods", "shop", "web-0")),
        (f"HEAD {PODS}/web-0", on("get", "pods", "shop", "web-0")),
        (f"GET {PODS}/web-0/log", on("get", "pods/log", "shop", "web-0")),
        (f"POST {PODS}", on("create", "pods", "shop")),
        (f"POST {PODS}/web-0/exec?command=ls", on("create", "pods/exec", "shop", "web-0")),
        (f"PUT {PODS}/web-0/status", on("update", "pods/status", "shop", "web-0")),
        (f"PATCH {PODS}/web-0", on("patch", "pods", "shop", "web-0")),
        (f"DELETE {PODS}/web-0", on("delete", "pods", "shop", "web-0")),
        (f"DELETE {PODS}", on("deletecollection", "pods", "shop")),
        ("GET /api/v1/namespaces", on("list", "namespaces")),
        ("GET /api/v1/namespaces/shop", on("get", "namespaces", "shop", "shop")),
        ("PUT /api/v1/namespaces/shop/finalize", on("update", "namespaces/finalize", "shop", "shop")),
        ("GET /apis/apps/v1/namespaces/shop/deployments", on("list", "deployments", "shop", group="apps")),
        ("GET /apis/unknown.example/v1/things", on("list", "things", group="unknown.example")),
        (f"GET {PODS}/web-0/proxy/a/b", on("get", "pods/proxy", "shop", "web-0")),
        ("GET /api/v1", RequestAttributes("get", path="/api/v1")),
        ("GET /apis/apps/v1", RequestAttributes("get", path="/apis/apps/v1")),
        ("GET /readyz/ping?verbose", RequestAttributes("get", path="/readyz/ping")),
        ("POST /version", RequestAttributes("post", path="/version")),
        ("GET /", RequestAttributes("get", path="/")),
    ],
)
def test_a_request_asks_for_an_action(line: str, action: RequestAttributes) -> None:
    method, _, target = line.partition(" ")
    request = Request(method, target, {}, b"")
    assert attributes_of(request, request.segments()) == action


def test_a_field_selector_of_one_name_names_the_object() -> None:
    target = f"{PODS}?fieldSelector=metadata.name%3Dweb-0,spec.nodeName==node-1,status.phase!=Failed"
    request = Request("GET", target, {}, b"")
    result = attributes_of(request, request.segments())
    assert (result.verb, result.name) == ("list", "web-0")
    assert result.selected == {"metadata.name": "web-0", "spec.nodeName": "node-1"}
