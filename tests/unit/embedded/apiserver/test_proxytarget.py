"""Which pod and port a request to ``/proxy`` of a pod or a Service is for."""

from collections.abc import Callable
from typing import Any

import pytest

from podwire.embedded.apiserver.calls import Call, UserInfo, parse_target
from podwire.embedded.apiserver.kinds import KINDS
from podwire.embedded.apiserver.proxytarget import proxy_path, proxy_target, split_name
from podwire.errors import ApiError
from podwire.http.message import Request

CORE = "/api/v1/namespaces/default"
NAMES = {
    "web": ("http", "web", ""),
    "web:80": ("http", "web", "80"),
    "https:web:": ("https", "web", ""),
    "https:web:443": ("https", "web", "443"),
    "http:web:tls": ("http", "web", "tls"),
    "ftp:web:21": None,
    ":80": None,
    "a:b:c:d": None,
}


@pytest.mark.parametrize("text", NAMES)
def test_names_have_three_forms(text: str) -> None:
    assert split_name(text) == NAMES[text]


def _call(path: str) -> Call:
    request = Request("GET", path, {}, b"")
    return Call(request, UserInfo("admin"), parse_target(request.segments(), KINDS))


@pytest.mark.parametrize(
    ("path", "rest"),
    [
        (f"{CORE}/pods/p/proxy", ""),
        (f"{CORE}/pods/p/proxy/", "/"),
        (f"{CORE}/services/https:s:tls/proxy/a%2Fb//c/?x=1", "/a%2Fb//c/"),
        ("/api/v1/nodes/n:9100/proxy/metrics", "/metrics"),
    ],
)
def test_the_path_behind_the_proxy_stays_as_sent(path: str, rest: str) -> None:
    assert proxy_path(_call(path)) == (path.partition("/proxy")[0] + "/proxy", rest)


def _pod(name: str, ip: str, *ports: int) -> dict[str, Any]:
    containers = [{"name": "c", "image": "x", "ports": [{"containerPort": port} for port in ports]}]
    return {
        "metadata": {"name": name},
        "spec": {"nodeName": "n", "containers": containers},
        "status": {"podIP": ip, "podIPs": [{"ip": ip}]},
    }


def _slice(name: str, port: str, number: int, **endpoints: bool) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "s"}},
        "addressType": "IPv4",
        "ports": [{"name": port, "port": number}],
        "endpoints": [
            {
                "addresses": ["10.244.0.7"],
                "conditions": {"ready": ready},
                "targetRef": {"kind": "Pod", "name": pod, "namespace": "default"},
            }
            for pod, ready in endpoints.items()
        ],
    }


TARGETS: dict[str, tuple[str, int, bool] | int] = {
    "pods/p": ("10.244.0.7:8080", 8080, False),
    "pods/p:9": ("10.244.0.7:9", 9, False),
    "pods/https:p:": ("10.244.0.7:8080", 8080, True),
    "pods/plain": ("[fd00::7]:80", 80, False),
    "pods/https:plain:": ("[fd00::7]:443", 443, True),
    "pods/local": 400,
    "pods/none": 404,
    "pods/p:http": 503,
    "pods/p:99999": 503,
    "services/s:80": ("10.244.0.7:8080", 8080, False),
    "services/s:web": ("10.244.0.7:8080", 8080, False),
    "services/https:s:tls": ("10.244.0.7:8443", 8443, True),
    "services/s": 503,
    "services/s:81": 503,
    "services/s:idle": 503,
    "services/none:80": 404,
    "services/ftp:s:80": 400,
}


def test_targets_of_pods_and_services(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        for pod in (_pod("p", "10.244.0.7", 8080, 9), _pod("plain", "fd00::7"), _pod("local", "127.0.0.1", 80)):
            await api("POST", f"{CORE}/pods", pod)
            await api("PATCH", f"{CORE}/pods/{pod['metadata']['name']}/status", {"status": pod["status"]},
                      content_type="application/merge-patch+json")  # fmt: skip
        ports = [{"name": name, "port": port} for name, port in (("web", 80), ("tls", 443), ("idle", 82))]
        await api("POST", f"{CORE}/services", {"metadata": {"name": "s"}, "spec": {"ports": ports}})
        slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
        for created in (_slice("a", "web", 8080, p=True, none=False), _slice("b", "tls", 8443, p=True),
                     _slice("c", "idle", 82, p=False)):  # fmt: skip
            assert (await api("POST", slices, created))[0] == 201
        for name, expected in TARGETS.items():
            call = _call(f"{CORE}/{name}/proxy/")
            if isinstance(expected, int):
                with pytest.raises(ApiError) as refused:
                    proxy_target(api.server.store, call)
                assert refused.value.code == expected, name
            else:
                result = proxy_target(api.server.store, call)
                assert (result.host, result.port, result.tls) == expected and result.node == "n", name

    play(scenario)
