"""The order in which the objects of a terminating namespace are deleted."""

from collections.abc import Callable
from typing import Any

SHOP = "/api/v1/namespaces/shop"
PODS, SECRETS = f"{SHOP}/pods", f"{SHOP}/secrets"
POLICIES = "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies"


def test_policies_stay_until_the_last_pod_has_ended(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", "/api/v1/namespaces", {"metadata": {"name": "shop"}})
        spec = {"nodeName": "n1", "containers": [{"name": "c", "image": "nginx"}]}
        for name in ("db", "web"):
            assert (await api("POST", PODS, {"metadata": {"name": name}, "spec": spec}))[0] == 201
        await api("POST", POLICIES, {"metadata": {"name": "deny"}, "spec": {"podSelector": {}}})
        await api("POST", SECRETS, {"metadata": {"name": "key"}})
        await api("DELETE", SHOP)
        for name in ("db", "web"):
            await api.settle()
            assert (await api("GET", f"{PODS}/{name}"))[1]["metadata"]["deletionTimestamp"]
            assert (await api("GET", f"{POLICIES}/deny"))[0] == 200
            assert (await api("GET", f"{SECRETS}/key"))[0] == 200
            conditions = (await api("GET", SHOP))[1]["status"]["conditions"]
            assert "pods has" in next(c["message"] for c in conditions if c["type"] == "NamespaceContentRemaining")
            await api("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
        await api.settle()
        assert (await api("GET", f"{POLICIES}/deny"))[0] == 404
        assert (await api("GET", SHOP))[0] == 404

    play(scenario)
