"""Runtime classes of new pods, and the names of sysctls."""

from collections.abc import Callable
from typing import Any

PODS = "/api/v1/namespaces/default/pods"
CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
Play = Callable[..., None]


def pod(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "nginx"}], **spec}}


def test_runtime_class_adds_overhead_selector_and_tolerations(play: Play) -> None:
    async def scenario(api: Any) -> None:
        toleration = {"key": "runtime", "operator": "Exists"}
        body = {
            "metadata": {"name": "sandboxed"}, "handler": "any", "overhead": {"podFixed": {"cpu": "10m"}},
            "scheduling": {"nodeSelector": {"disk": "fast"}, "tolerations": [toleration]},
        }  # fmt: skip
        status, answer = await api("POST", CLASSES, body)
        assert status == 201, answer
        _, created = await api("POST", PODS, pod("a", runtimeClassName="sandboxed"))
        assert created["spec"]["overhead"] == {"cpu": "10m"}
        assert created["spec"]["nodeSelector"] == {"disk": "fast"}
        assert toleration in created["spec"]["tolerations"]
        for spec, arguments in (
            ({"overhead": {"cpu": "1"}}, "Pod's Overhead doesn't match"),
            ({"nodeSelector": {"disk": "slow"}}, "conflict: runtimeClass.scheduling.nodeSelector[disk]"),
        ):
            status, answer = await api("POST", PODS, pod("b", runtimeClassName="sandboxed", **spec))
            assert (status, arguments in answer["message"]) == (403, True), answer

    play(scenario)


def test_unknown_runtime_class_is_refused(play: Play) -> None:
    async def scenario(api: Any) -> None:
        status, answer = await api("POST", PODS, pod("a", runtimeClassName="none"))
        assert (status, answer["message"]) == (
            403,
            'pods "a" is forbidden: pod rejected: RuntimeClass "none" not found',
        )
        status, answer = await api("POST", PODS, pod("a", overhead={"cpu": "1"}))
        assert "Pod Overhead set without corresponding RuntimeClass" in answer["message"]

    play(scenario)


def test_wrong_names_of_sysctls_are_refused(play: Play) -> None:
    async def scenario(api: Any) -> None:
        listed = [{"name": name, "value": "1"} for name in ("foo-", "kernel.shmmax", "bar..", "net/ipv4/tcp_rmem")]
        status, answer = await api("POST", PODS, pod("a", securityContext={"sysctls": listed}))
        assert status == 422
        fields = [cause["field"] for cause in answer["details"]["causes"]]
        assert fields == ["spec.securityContext.sysctls[0].name", "spec.securityContext.sysctls[2].name"]

    play(scenario)
