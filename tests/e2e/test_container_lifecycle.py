"""Containers from start to end: init containers, hooks, phases, termination messages, restarts."""

from typing import Any

from tests.e2e.connection import Connection
from tests.e2e.driver import Cluster, eventually

_MESSAGE = "/dev/termination-custom-log"


def shell(name: str, script: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": "busybox:1.36", "command": ["sh", "-c", script], **more}


def start(api: Connection, namespace: str, name: str, containers: list[dict[str, Any]], **spec: Any) -> str:
    """A new pod; its path."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    body = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 2, "containers": containers, **spec}
    api.do("POST", path, {"metadata": {"name": name}, "spec": body})
    return f"{path}/{name}"


def phase(api: Connection, path: str, expected: str) -> dict[str, Any]:
    """The status of a pod that reaches a phase."""
    result: dict[str, Any] = eventually(lambda: (now := api.do("GET", path)["status"])["phase"] == expected and now)
    return result


def test_phases_of_pods_whose_container_exits(api: Connection, namespace: str) -> None:
    good = start(api, namespace, "good", [shell("c", "exit 0")])
    bad = start(api, namespace, "bad", [shell("c", "exit 3")])
    again = start(api, namespace, "again", [shell("c", "exit 1")], restartPolicy="Always")
    ended = phase(api, good, "Succeeded")["containerStatuses"][0]
    assert (ended["state"]["terminated"]["reason"], ended["restartCount"]) == ("Completed", 0)
    ended = phase(api, bad, "Failed")["containerStatuses"][0]["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("Error", 3)
    eventually(lambda: api.do("GET", again)["status"].get("containerStatuses", [{}])[0].get("restartCount", 0) > 0)
    assert api.do("GET", again)["status"]["phase"] == "Running"
    api.do("DELETE", again)
    eventually(lambda: api.ask("GET", again).status == 404)


def test_termination_messages(api: Connection, namespace: str) -> None:
    fallback = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    user = {"securityContext": {"runAsUser": 1000}, "terminationMessagePath": _MESSAGE}
    file = "printf %s DONE > "
    path = start(api, namespace, "messages", [
        shell("other-path", file + _MESSAGE, **user),
        shell("from-log", "printf %s DONE; exit 1", **fallback),
        shell("no-file", "echo something", **fallback),
        shell("from-file", f"{file}/dev/termination-log", **fallback),
    ])  # fmt: skip
    status = phase(api, path, "Failed")
    messages = {item["name"]: item["state"]["terminated"].get("message", "") for item in status["containerStatuses"]}
    assert messages == {"other-path": "DONE", "from-log": "DONE", "no-file": "", "from-file": "DONE"}


def test_init_containers_run_in_order(api: Connection, cluster: Cluster, namespace: str) -> None:
    mount = {"volumeMounts": [{"name": "d", "mountPath": "/d"}]}
    spec: dict[str, Any] = {
        "volumes": [{"name": "d", "emptyDir": {}}],
        "initContainers": [shell("one", "echo 1 >> /d/order", **mount), shell("two", "echo 2 >> /d/order", **mount)],
    }
    path = start(api, namespace, "never", [shell("c", "cat /d/order", **mount)], **spec)
    status = phase(api, path, "Succeeded")
    assert cluster.kubectl("logs", "never", "-c", "c", "-n", namespace) == "1\n2\n"
    assert [item["state"]["terminated"]["exitCode"] for item in status["initContainerStatuses"]] == [0, 0]
    always = start(api, namespace, "always", [shell("c", "sleep 600")], restartPolicy="Always", **spec)
    status = phase(api, always, "Running")
    assert [item["ready"] for item in status["initContainerStatuses"]] == [True, True]
    conditions = {item["type"]: item["status"] for item in status["conditions"]}
    assert conditions["Initialized"] == "True"


def test_failing_init_container_is_restarted_and_nothing_else_starts(api: Connection, namespace: str) -> None:
    init = [shell("bad", "exit 1"), shell("next", "exit 0")]
    path = start(api, namespace, "p", [shell("c", "exit 0")], restartPolicy="Always", initContainers=init)

    def restarted() -> dict[str, Any] | None:
        status: dict[str, Any] = api.do("GET", path)["status"]
        states = status.get("initContainerStatuses") or [{}]
        return status if states[0].get("restartCount", 0) > 0 else None

    status = eventually(restarted)
    assert status["phase"] == "Pending"
    waiting = [item["state"].keys() for item in (status["initContainerStatuses"][1], *status["containerStatuses"])]
    assert waiting == [{"waiting"}, {"waiting"}]
    (initialized,) = [item for item in status["conditions"] if item["type"] == "Initialized"]
    assert (initialized["status"], initialized["reason"]) == ("False", "ContainersNotInitialized")


def test_hooks_run_after_the_start_and_before_the_stop(api: Connection, cluster: Cluster, namespace: str) -> None:
    """One pod runs commands and calls another pod, which tells what it was called for."""
    listener = (
        "import http.server\n"
        "class Page(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        print(self.path, flush=True); self.send_response(200); self.end_headers()\n"
        "http.server.HTTPServer(('', 8080), Page).serve_forever()\n"
    )
    probe = {"tcpSocket": {"port": 8080}, "periodSeconds": 1}
    server = {"name": "c", "image": "python:3", "command": ["python3", "-u", "-c", listener], "readinessProbe": probe}
    path = start(api, namespace, "listener", [server])
    eventually(lambda: api.do("GET", path)["status"].get("containerStatuses", [{}])[0].get("ready"))
    address = api.do("GET", path)["status"]["podIP"]

    def http(word: str) -> dict[str, Any]:
        return {"httpGet": {"host": address, "port": 8080, "path": f"/{word}"}}

    def command(word: str) -> dict[str, Any]:
        call = f"import urllib.request; urllib.request.urlopen('http://{address}:8080/{word}')"
        return {"exec": {"command": ["python3", "-c", call]}}

    hooked = start(api, namespace, "hooked", [
        shell("by-http", "sleep 600", lifecycle={"postStart": http("http-start"), "preStop": http("http-stop")}),
        shell("by-exec", "sleep 600", lifecycle={"postStart": command("exec-start"), "preStop": command("exec-stop")}),
    ])  # fmt: skip

    def called() -> set[str]:
        fields = cluster.kubectl("logs", "listener", "-n", namespace).split()
        return {word for word in fields if word.startswith("/")}

    phase(api, hooked, "Running")
    eventually(lambda: called() >= {"/http-start", "/exec-start"})
    assert not called() & {"/http-stop", "/exec-stop"}
    api.do("DELETE", hooked)
    eventually(lambda: api.ask("GET", hooked).status == 404)
    assert called() == {"/http-start", "/exec-start", "/http-stop", "/exec-stop"}


def test_restarts_are_counted_one_by_one(api: Connection, namespace: str) -> None:
    script = "echo ok > /tmp/health-$HOSTNAME; sleep 0.5; rm /tmp/health-$HOSTNAME; sleep 600"
    probe = {"exec": {"command": ["sh", "-c", "cat /tmp/health-$HOSTNAME"]}, "periodSeconds": 1, "failureThreshold": 1,
             "initialDelaySeconds": 1}  # fmt: skip
    container = shell("c", script, livenessProbe=probe)
    spec = {"restartPolicy": "Always", "terminationGracePeriodSeconds": 0}
    path = start(api, namespace, "restarted", [container], **spec)
    events = api.watch(f"/api/v1/namespaces/{namespace}/pods", fieldSelector="metadata.name=restarted")
    counts: list[int] = []
    while not counts or counts[-1] < 1:
        statuses = next(events)["object"]["status"].get("containerStatuses") or [{"restartCount": 0}]
        counts.append(statuses[0]["restartCount"])
    events.close()
    assert set(counts) == {0, 1} and counts == sorted(counts)
    api.do("DELETE", path, gracePeriodSeconds="0")
