"""Claims and volumes in the API server: the default class, finalizers, what may change."""

from collections.abc import Callable
from typing import Any

CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
Play = Callable[..., None]
MERGE = {"content_type": "application/merge-patch+json"}


def claim(name: str, **spec: Any) -> dict[str, Any]:
    asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **spec}
    return {"metadata": {"name": name}, "spec": asked}


def volume(name: str, **spec: Any) -> dict[str, Any]:
    have = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/v"}, **spec}
    return {"metadata": {"name": name}, "spec": have}


def test_claim_gets_the_default_class_and_its_finalizer(play: Play) -> None:
    async def scenario(api: Any) -> None:
        _, created = await api("POST", CLAIMS, claim("a"))
        assert created["spec"]["storageClassName"] == "standard"
        assert created["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]
        assert created["status"]["phase"] == "Pending"
        _, without = await api("POST", CLAIMS, claim("b", storageClassName=""))
        assert without["spec"]["storageClassName"] == ""
        _, held = await api("POST", VOLUMES, volume("v"))
        assert held["metadata"]["finalizers"] == ["kubernetes.io/pv-protection"]

    play(scenario)


def test_wrong_claims_and_volumes_are_refused(play: Play) -> None:
    async def scenario(api: Any) -> None:
        for path, body, arguments in (
            (CLAIMS, claim("a", accessModes=["Sometimes"]), "spec.accessModes: Unsupported value"),
            (CLAIMS, claim("a", accessModes=["ReadWriteOnce", "ReadWriteOncePod"]), "may not use ReadWriteOncePod"),
            (CLAIMS, claim("a", resources={"requests": {"storage": "0"}}), "must be greater than zero"),
            (CLAIMS, claim("a", volumeMode="Tape"), "spec.volumeMode"),
            (VOLUMES, volume("v", hostPath=None), "must specify a volume type"),
            (VOLUMES, volume("v", local={"path": "/x"}), "may not specify more than 1 volume type"),
            (VOLUMES, volume("v", hostPath={"path": "/a/../b"}), "must not contain '..'"),
            (VOLUMES, volume("v", capacity={}), "spec.capacity: Required value"),
            (VOLUMES, volume("v", hostPath=None, local={"path": "/x"}), "Local volume requires node affinity"),
            (CLASSES, {"metadata": {"name": "c"}}, "provisioner: Required value"),
        ):
            status, answer = await api("POST", path, body)
            assert (status, arguments in answer["message"]) == (422, True), answer

    play(scenario)


def resources(size: str) -> dict[str, Any]:
    return {"spec": {"resources": {"requests": {"storage": size}}}}


def test_bound_claim_grows_only_when_its_class_allows(play: Play) -> None:
    async def scenario(api: Any) -> None:
        async def patch(path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
            answer: tuple[int, dict[str, Any]] = await api("PATCH", path, body, **MERGE)
            return answer

        await api("POST", CLASSES, {"metadata": {"name": "fixed"}, "provisioner": "x"})
        for name, class_name, expected in (("a", "standard", 200), ("b", "fixed", 403)):
            await api("POST", CLAIMS, claim(name, storageClassName=class_name))
            await patch(f"{CLAIMS}/{name}/status", {"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}})
            status, _ = await patch(f"{CLAIMS}/{name}", resources("2Gi"))
            assert status == expected
        await patch(f"{CLAIMS}/a/status", {"status": {"capacity": {"storage": "9Gi"}}})
        assert (await patch(f"{CLAIMS}/a", {"metadata": {"finalizers": None}}))[0] == 200
        status, answer = await patch(f"{CLAIMS}/a", resources("1Mi"))
        assert (status, "less than status.capacity" in answer["message"]) == (422, True)
        status, answer = await patch(f"{CLAIMS}/a", {"spec": {"volumeMode": "Block"}})
        assert (status, "spec is immutable after creation" in answer["message"]) == (422, True)

    play(scenario)


def test_template_may_mount_a_claim_of_the_statefulset(play: Play) -> None:
    async def scenario(api: Any) -> None:
        container = {"name": "c", "image": "i", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
        spec = {
            "serviceName": "db", "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}},
            "volumeClaimTemplates": [claim("data")],
        }  # fmt: skip
        path = "/apis/apps/v1/namespaces/default/statefulsets"
        status, answer = await api("POST", path, {"metadata": {"name": "db"}, "spec": spec})
        assert status == 201, answer
        container["volumeMounts"] = [{"name": "other", "mountPath": "/data"}]
        status, answer = await api("POST", path, {"metadata": {"name": "db2"}, "spec": spec})
        assert (status, "volumeMounts[0].name" in answer["message"]) == (422, True)

    play(scenario)
