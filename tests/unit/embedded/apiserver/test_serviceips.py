"""IPAddresses of Services and the ranges of ServiceCIDRs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Play = Callable[..., None]

SERVICES = "/api/v1/namespaces/default/services"
ADDRESSES = "/apis/networking.k8s.io/v1/ipaddresses"
RANGES = "/apis/networking.k8s.io/v1/servicecidrs"
MERGE = {"content_type": "application/merge-patch+json"}


def service(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **spec}}


async def names(api: Any) -> list[str]:
    _, result = await api("GET", ADDRESSES)
    return [item["metadata"]["name"] for item in result["items"]]


def test_address_lives_as_long_as_its_service(play: Play) -> None:
    async def scenario(api: Any) -> None:
        assert await names(api) == ["10.96.0.1"]
        await api("POST", SERVICES, service("a", clusterIP="10.96.0.9"))
        _, result = await api("GET", f"{ADDRESSES}/10.96.0.9")
        parent = {"group": "", "resource": "services", "namespace": "default", "name": "a"}
        assert result["spec"] == {"parentRef": parent}
        family, manager = "ipaddress.kubernetes.io/ip-family", "ipaddress.kubernetes.io/managed-by"
        assert result["metadata"]["labels"] == {family: "IPv4", manager: "ipallocator.k8s.io"}
        await api("DELETE", f"{ADDRESSES}/10.96.0.9")
        assert await names(api) == ["10.96.0.1", "10.96.0.9"]
        external = {"spec": {"type": "ExternalName", "externalName": "x.example.com", "clusterIP": None}}
        await api("PATCH", f"{SERVICES}/a", external, **MERGE)
        await api("POST", SERVICES, service("headless", clusterIP="None"))
        assert await names(api) == ["10.96.0.1"]
        await api("POST", SERVICES, service("b"))
        await api("DELETE", f"{SERVICES}/b")
        assert await names(api) == ["10.96.0.1"]

    play(scenario)


def test_addresses_of_an_older_state_are_made_at_the_start(play: Play) -> None:
    async def older(api: Any) -> None:
        await api("POST", SERVICES, service("a", clusterIP="10.96.0.9"))
        store = api.server.store
        store.on_write.clear()
        store.delete(store.get("networking.k8s.io/ipaddresses", "", "10.96.0.9"))
        store.delete(store.get("/services", "default", "kubernetes"))
        entry = store.get("networking.k8s.io/servicecidrs", "", "kubernetes")
        obj = entry.object()
        del obj["status"], obj["metadata"]["finalizers"]
        store.put(entry.table, obj)

    async def scenario(api: Any) -> None:
        assert await names(api) == ["10.96.0.1", "10.96.0.9"]
        _, result = await api("GET", f"{RANGES}/kubernetes")
        assert result["metadata"]["finalizers"] == ["networking.k8s.io/service-cidr-finalizer"]

    play(older)
    play(scenario)


def test_address_of_another_device_is_in_use(play: Play) -> None:
    async def scenario(api: Any) -> None:
        parent = {"group": "gateway.example.com", "resource": "gateways", "namespace": "default", "name": "g"}
        body = {"metadata": {"name": "10.96.0.9"}, "spec": {"parentRef": parent}}
        assert (await api("POST", ADDRESSES, body))[0] == 201
        status, result = await api("POST", SERVICES, service("a", clusterIP="10.96.0.9"))
        assert status == 422 and "provided IP is already allocated" in result["message"]
        await api("DELETE", f"{ADDRESSES}/10.96.0.9")
        assert (await api("POST", SERVICES, service("a", clusterIP="10.96.0.9")))[0] == 201

    play(scenario)


def test_second_range_is_used_when_the_first_is_full(play: Play, no_state: Path) -> None:
    async def scenario(api: Any) -> None:
        for name in "abcde":
            assert (await api("POST", SERVICES, service(name)))[0] == 201
        status, result = await api("POST", SERVICES, service("f"))
        assert (status, result["message"]) == (500, "failed to allocate a serviceIP: range is full")
        status, result = await api("POST", RANGES, {"metadata": {"name": "more"}, "spec": {"cidrs": ["10.97.0.0/24"]}})
        (ready,) = result["status"]["conditions"]
        assert (status, ready["type"], ready["status"]) == (201, "Ready", "True")
        _, result = await api("POST", SERVICES, service("f"))
        assert result["spec"]["clusterIP"].startswith("10.97.0.")
        await api("DELETE", f"{RANGES}/more")
        await api.settle()
        _, remaining = await api("GET", f"{RANGES}/more")
        (ready,) = remaining["status"]["conditions"]
        assert (ready["status"], ready["reason"]) == ("False", "Terminating")
        assert (await api("POST", SERVICES, service("g")))[0] == 500
        await api("DELETE", f"{SERVICES}/f")
        await api.settle()
        assert (await api("GET", f"{RANGES}/more"))[0] == 404

    play(scenario, state=no_state, service_cidrs=("10.96.0.0/29",))


@pytest.mark.parametrize(
    ("cidrs", "problem"),
    [
        ([], "spec.cidrs: Required value: at least one CIDR required"),
        (["x"], 'spec.cidrs[0]: Invalid value: "x": must be a valid CIDR value'),
        (["10.0.0.1/24"], 'spec.cidrs[0]: Invalid value: "10.0.0.1/24": must be in canonical form ("10.0.0.0/24")'),
        (["10.0.0.0/24", "10.1.0.0/24"], "may specify no more than one IP for each IP family"),
        (["10.0.0.0/24", "fd00::/64", "fd01::/64"], "may only hold up to 2 values"),
    ],
)
def test_wrong_range_is_refused(play: Play, cidrs: list[str], problem: str) -> None:
    async def scenario(api: Any) -> None:
        status, result = await api("POST", RANGES, {"metadata": {"name": "r"}, "spec": {"cidrs": cidrs}})
        assert status == 422 and problem in result["message"], result

    play(scenario)


def test_range_may_only_get_its_second_family(play: Play) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", RANGES, {"metadata": {"name": "r"}, "spec": {"cidrs": ["10.9.0.0/24"]}})
        status, result = await api("PATCH", f"{RANGES}/r", {"spec": {"cidrs": ["10.8.0.0/24"]}}, **MERGE)
        assert status == 422 and "field is immutable" in result["message"]
        assert (await api("PATCH", f"{RANGES}/r", {"spec": {"cidrs": ["10.9.0.0/24", "fd00::/64"]}}, **MERGE))[0] == 200

    play(scenario)
