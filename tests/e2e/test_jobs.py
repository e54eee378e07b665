"""Jobs through the API: adoption, indexes, restarts, deletion."""

from typing import Any

from tests.e2e.connection import Connection
from tests.e2e.driver import eventually


def job(script: str, restart: str = "Never", **spec: Any) -> dict[str, Any]:
    """A Job whose pods run a shell script."""
    container: dict[str, Any] = {"name": "c", "image": "busybox:1.36", "command": ["sh", "-c", script]}
    volumes: dict[str, Any] = {}
    if restart == "OnFailure":
        container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
        volumes = {"volumes": [{"name": "data", "emptyDir": {}}]}
    pod = {"restartPolicy": restart, "terminationGracePeriodSeconds": 0, "containers": [container], **volumes}
    return {"metadata": {"name": "j"}, "spec": {"template": {"spec": pod}, **spec}}


def jobs(namespace: str) -> str:
    return f"/apis/batch/v1/namespaces/{namespace}/jobs"


def pods(api: Connection, namespace: str) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = api.do("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
    return result


def ended(api: Connection, namespace: str) -> dict[str, Any]:
    """The status of the Job when it has ended."""

    def status() -> dict[str, Any] | None:
        results: dict[str, Any] = api.do("GET", f"{jobs(namespace)}/j").get("status", {})
        types = {item["type"] for item in results.get("conditions", ()) if item["status"] == "True"}
        return results if types & {"Complete", "Failed"} else None

    result: dict[str, Any] = eventually(status)
    return result


def condition(status: dict[str, Any]) -> tuple[str, str]:
    """The last condition: its type and reason."""
    last = status["conditions"][-1]
    return last["type"], last["reason"]


def test_failed_containers_are_restarted_until_the_job_completes(api: Connection, namespace: str) -> None:
    script = "if test -e /data/once; then exit 0; fi; touch /data/once; exit 1"
    api.do("POST", jobs(namespace), job(script, "OnFailure", parallelism=2, completions=2))
    status = ended(api, namespace)
    assert (condition(status)[0], status["succeeded"]) == ("Complete", 2)
    restarts = [pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods(api, namespace)]
    assert restarts == [1, 1]


def test_indexed_pods_know_their_index_and_host_name(api: Connection, namespace: str) -> None:
    script = 'test "$(hostname)" = "j-$JOB_COMPLETION_INDEX"'
    body = job(script, parallelism=2, completions=3, completionMode="Indexed", backoffLimit=0)
    api.do("POST", jobs(namespace), body)
    status = ended(api, namespace)
    assert (condition(status)[0], status["completedIndexes"]) == ("Complete", "0-2")
    indexes = {
        pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] for pod in pods(api, namespace)
    }
    assert indexes == {"0", "1", "2"}


def test_a_job_adopts_orphans_and_releases_pods(api: Connection, namespace: str) -> None:
    uid = api.do("POST", jobs(namespace), job("sleep 600", parallelism=1))["metadata"]["uid"]
    (pod,) = eventually(lambda: pods(api, namespace))
    path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}"

    def owners() -> list[str]:
        return [owner["uid"] for owner in api.do("GET", path)["metadata"].get("ownerReferences", ())]

    api.do("PATCH", path, {"metadata": {"ownerReferences": None}})
    eventually(lambda: owners() == [uid])
    labels = dict.fromkeys(pod["metadata"]["labels"])
    api.do("PATCH", path, {"metadata": {"labels": labels}})
    eventually(lambda: owners() == [])


def test_a_deleted_job_takes_its_pods_along(api: Connection, namespace: str) -> None:
    api.do("POST", jobs(namespace), job("sleep 600", parallelism=2))
    eventually(lambda: len(pods(api, namespace)) == 2)
    api.do("DELETE", f"{jobs(namespace)}/j", {"propagationPolicy": "Background"})
    eventually(lambda: not pods(api, namespace))
    assert api.ask("GET", f"{jobs(namespace)}/j").status == 404


_BY_INDEX = 'case "$JOB_COMPLETION_INDEX" in 1|3) exit 42;; esac'


def test_exit_code_fails_the_job_early(api: Connection, namespace: str) -> None:
    rule = {"action": "FailJob", "onExitCodes": {"containerName": "c", "operator": "In", "values": [42]}}
    body = job("exit 42", parallelism=1, completions=4, podFailurePolicy={"rules": [rule]})
    api.do("POST", jobs(namespace), body)
    status = ended(api, namespace)
    assert (condition(status), status["failed"]) == (("Failed", "PodFailurePolicy"), 1)
    assert "failed with exit code 42 matching FailJob rule at index 0" in status["conditions"][-1]["message"]


def test_an_evicted_pod_may_be_no_failure(api: Connection, namespace: str) -> None:
    rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    script = "trap 'exit 5' TERM; while true; do sleep 0.1; done"
    body = job(script, parallelism=1, completions=1, backoffLimit=0, podFailurePolicy={"rules": [rule]})
    body["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 5
    api.do("POST", jobs(namespace), body)
    (pod,) = eventually(lambda: [pod for pod in pods(api, namespace) if pod["status"]["phase"] == "Running"])
    name, path = pod["metadata"]["name"], f"/api/v1/namespaces/{namespace}/pods"
    held = {"metadata": {"finalizers": ["example.com/held"]}}
    api.do("PATCH", f"{path}/{name}", held)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
    api.do("POST", f"{path}/{name}/eviction", eviction)
    failed = eventually(lambda: (item := api.do("GET", f"{path}/{name}")["status"])["phase"] == "Failed" and item)
    (target,) = [item for item in failed["conditions"] if item["type"] == "DisruptionTarget"]
    assert (target["status"], target["reason"]) == ("True", "EvictionByEvictionAPI")
    eventually(lambda: {pod["metadata"]["name"] for pod in pods(api, namespace)} > {name})
    status = api.do("GET", f"{jobs(namespace)}/j")["status"]
    assert not status.get("failed") and "conditions" not in status
    api.do("PATCH", f"{path}/{name}", {"metadata": {"finalizers": None}})


def test_failed_indexes_leave_the_other_indexes_alone(api: Connection, namespace: str) -> None:
    body = job(_BY_INDEX, parallelism=2, completions=5, completionMode="Indexed", backoffLimitPerIndex=0)
    api.do("POST", jobs(namespace), body)
    status = ended(api, namespace)
    assert condition(status) == ("Failed", "FailedIndexes")
    assert (status["completedIndexes"], status["failedIndexes"], status["failed"]) == ("0,2,4", "1,3", 2)


def test_too_many_failed_indexes_end_the_job(api: Connection, namespace: str) -> None:
    spec: dict[str, Any] = {"completionMode": "Indexed", "backoffLimitPerIndex": 0, "maxFailedIndexes": 0}
    api.do("POST", jobs(namespace), job("exit 1", parallelism=1, completions=3, **spec))
    status = ended(api, namespace)
    assert (condition(status), status["failedIndexes"]) == (("Failed", "MaxFailedIndexesExceeded"), "0")


def test_success_of_one_index_is_enough_by_policy(api: Connection, namespace: str) -> None:
    script = 'test "$JOB_COMPLETION_INDEX" = 0 || sleep 600'
    policy = {"rules": [{"succeededIndexes": "0", "succeededCount": 1}]}
    body = job(script, parallelism=2, completions=2, completionMode="Indexed", successPolicy=policy)
    api.do("POST", jobs(namespace), body)
    status = ended(api, namespace)
    kinds = {item["type"]: (item["reason"], item["message"]) for item in status["conditions"]}
    matched = ("SuccessPolicy", "Matched rules at index 0")
    assert kinds == {"SuccessCriteriaMet": matched, "Complete": matched}
    assert status["completedIndexes"] == "0"
    eventually(lambda: len(pods(api, namespace)) == 1)
