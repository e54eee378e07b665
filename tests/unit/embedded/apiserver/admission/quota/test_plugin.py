"""ResourceQuota at the API: refusals, status, bursts."""

import asyncio
from collections.abc import Callable
from typing import Any

Play = Callable[..., None]
Object = dict[str, Any]
BASE = "/api/v1/namespaces/default"


async def _quota(api: Any, hard: dict[str, str], **spec: Any) -> None:
    body = {"metadata": {"name": "q"}, "spec": {"hard": hard, **spec}}
    status, answer = await api("POST", f"{BASE}/resourcequotas", body)
    assert status == 201, answer


async def _status(api: Any) -> Object:
    _, quota = await api("GET", f"{BASE}/resourcequotas/q")
    obj: Object = quota["status"]
    return obj


def _pod(name: str, **resources: Object) -> Object:
    spec = {"containers": [{"name": "c", "image": "i", "resources": resources}]}
    return {"metadata": {"name": name}, "spec": spec}


def test_a_quota_shows_what_is_used(play: Play) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", f"{BASE}/pods", _pod("before"))
        await _quota(api, {"pods": "3", "count/configmaps": "10"})
        assert await _status(api) == {
            "hard": {"count/configmaps": "10", "pods": "3"}, "used": {"count/configmaps": "0", "pods": "1"}
        }  # fmt: skip
        await api("POST", f"{BASE}/configmaps", {"metadata": {"name": "c"}})
        await api("POST", f"{BASE}/pods", _pod("after"))
        assert (await _status(api))["used"] == {"count/configmaps": "1", "pods": "2"}
        await api("DELETE", f"{BASE}/pods/before?gracePeriodSeconds=0")
        assert (await _status(api))["used"] == {"count/configmaps": "1", "pods": "1"}

    play(scenario)


def test_what_exceeds_a_quota_is_refused(play: Play) -> None:
    async def scenario(api: Any) -> None:
        await _quota(api, {"requests.cpu": "1", "pods": "5"})
        await api("POST", f"{BASE}/pods", _pod("a", requests={"cpu": "700m"}))
        status, answer = await api("POST", f"{BASE}/pods", _pod("b", requests={"cpu": "400m"}))
        assert (status, answer["message"]) == (
            403,
            'pods "b" is forbidden: exceeded quota: q, requested: requests.cpu=400m, used: requests.cpu=700m, '
            "limited: requests.cpu=1",
        )
        status, answer = await api("POST", f"{BASE}/pods", _pod("c"))
        assert (status, answer["message"]) == (
            403, 'pods "c" is forbidden: failed quota: q: must specify requests.cpu for: c'
        )  # fmt: skip

    play(scenario)


def test_a_burst_never_exceeds_a_quota(play: Play) -> None:
    async def scenario(api: Any) -> None:
        await _quota(api, {"pods": "7"})
        answers = await asyncio.gather(*(api("POST", f"{BASE}/pods", _pod(f"p{i}")) for i in range(40)))
        assert sorted(status for status, _ in answers) == [201] * 7 + [403] * 33
        assert (await _status(api))["used"] == {"pods": "7"}
        message = next(answer["message"] for status, answer in answers if status == 403)
        assert message.endswith("exceeded quota: q, requested: pods=1, used: pods=7, limited: pods=7")

    play(scenario)


def test_a_change_that_needs_more_is_refused(play: Play) -> None:
    async def scenario(api: Any) -> None:
        await _quota(api, {"services.nodeports": "1"})
        body = {"metadata": {"name": "s"}, "spec": {"type": "NodePort", "ports": [{"name": "a", "port": 1}]}}
        status, service = await api("POST", f"{BASE}/services", body)
        assert status == 201
        service["spec"]["ports"].append({"name": "b", "port": 2})
        status, answer = await api("PUT", f"{BASE}/services/s", service)
        assert (status, answer["message"]) == (
            403,
            'services "s" is forbidden: exceeded quota: q, requested: services.nodeports=1, used: '
            "services.nodeports=1, limited: services.nodeports=1",
        )

    play(scenario)


def test_an_ended_pod_uses_nothing(play: Play) -> None:
    async def scenario(api: Any) -> None:
        await _quota(api, {"pods": "1"})
        _, pod = await api("POST", f"{BASE}/pods", _pod("a"))
        pod["status"] = {"phase": "Succeeded"}
        await api("PUT", f"{BASE}/pods/a/status", pod)
        assert (await _status(api))["used"] == {"pods": "0"}
        status, _ = await api("POST", f"{BASE}/pods", _pod("b"))
        assert status == 201

    play(scenario)


def test_a_scope_leaves_other_pods_out(play: Play) -> None:
    async def scenario(api: Any) -> None:
        await _quota(api, {"pods": "0"}, scopes=["BestEffort"])
        assert (await api("POST", f"{BASE}/pods", _pod("a")))[0] == 403
        assert (await api("POST", f"{BASE}/pods", _pod("b", requests={"cpu": "1"})))[0] == 201

    play(scenario)
