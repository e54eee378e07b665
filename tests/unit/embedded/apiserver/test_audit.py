"""The audit log: which requests its rules choose, and the events in its file."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.audit import AuditLog
from podwire.embedded.apiserver.auditrules import AuditSettings
from podwire.embedded.apiserver.authorization.requests import attributes_of
from podwire.embedded.apiserver.calls import UserInfo
from podwire.errors import ApiError, ConfigError
from podwire.http.answer import Streaming
from podwire.http.message import Request, Response
from podwire.local.config import parse_config
from podwire.runtime.clock import SystemClock

USER = UserInfo("system:serviceaccount:shop:web", ("system:serviceaccounts",))
PODS = "/api/v1/namespaces/shop/pods"


def settings(file: Path, *rules: dict[str, Any]) -> AuditSettings:
    document = {"file": str(file)} | ({"rules": list(rules)} if rules else {})
    return msgspec.convert(document, AuditSettings)


@pytest.mark.parametrize(
    ("rule", "method", "path", "expected"),
    [
        ({}, "GET", PODS, True),
        ({}, "GET", "/healthz", True),
        ({"users": ["admin"]}, "GET", PODS, False),
        ({"userGroups": ["system:serviceaccounts"]}, "GET", PODS, True),
        ({"verbs": ["list"]}, "GET", PODS, True),
        ({"verbs": ["get"]}, "GET", PODS, False),
        ({"resources": [{"resources": ["pods"]}]}, "GET", f"{PODS}/a", True),
        ({"resources": [{"resources": ["pods"]}]}, "GET", f"{PODS}/a/log", False),
        ({"resources": [{"resources": ["pods/*"]}]}, "GET", f"{PODS}/a/log", True),
        ({"resources": [{"resources": ["*/log"]}]}, "GET", f"{PODS}/a/log", True),
        ({"resources": [{"group": "apps"}]}, "GET", PODS, False),
        ({"resources": [{"resources": ["pods"], "resourceNames": ["b"]}]}, "GET", f"{PODS}/a", False),
        ({"namespaces": ["shop"]}, "GET", PODS, True),
        ({"namespaces": [""]}, "GET", PODS, False),
        ({"namespaces": [""]}, "GET", "/api/v1/nodes", True),
        ({"namespaces": ["shop"]}, "GET", "/healthz", False),
        ({"nonResourceURLs": ["/health*"]}, "GET", "/healthz", True),
        ({"nonResourceURLs": ["/health*"]}, "GET", PODS, False),
    ],
)
def test_a_rule_matches(rule: dict[str, Any], method: str, path: str, expected: bool) -> None:
    request = Request(method, path, {}, b"")
    level = settings(Path("/log"), {"level": "Request", **rule}).level(USER, attributes_of(request, request.segments()))
    assert level == ("Request" if expected else "None")


class Written:
    """An audit log over answers of the test."""

    def __init__(self, file: Path, *rules: dict[str, Any]) -> None:
        self.file = file
        self.answer: Any = Response(200, b'{"kind": "Pod"}')
        self.log = AuditLog(settings(file, *rules), self._user, lambda _: self.answer, SystemClock())

    def _user(self, request: Request) -> UserInfo:
        if request.headers.get("authorization") == "wrong":
            raise failures.unauthorized()
        return USER

    def ask(self, method: str, target: str, body: bytes = b"", **named: str) -> list[dict[str, Any]]:
        """Sends a request; all events so far."""
        result = self.log.handle(
            Request(method, target, {key.replace("_", "-"): text for key, text in named.items()}, body)
        )
        if asyncio.iscoroutine(result):
            asyncio.run(result)
        return [json.loads(line) for line in self.file.read_text().splitlines()]


def test_events_name_user_object_and_status(tmp_path: Path) -> None:
    log = Written(tmp_path / "audit.log")
    (event,) = log.ask("DELETE", f"{PODS}/a?dryRun=All", user_agent="kubectl/v1", impersonate_user="jane")
    assert event["user"] == {"username": USER.name, "groups": list(USER.groups)}
    assert event["objectRef"] == {"resource": "pods", "namespace": "shop", "name": "a", "apiVersion": "v1"}
    assert (event["level"], event["stage"], event["verb"]) == ("Metadata", "ResponseComplete", "delete")
    assert event["responseStatus"] == {"code": 200} and event["requestURI"] == f"{PODS}/a?dryRun=All"
    assert event["impersonatedUser"] == {"username": "jane"} and event["userAgent"] == "kubectl/v1"
    assert not {"requestObject", "responseObject"} & set(event)


def test_bodies_follow_the_level(tmp_path: Path) -> None:
    rules = ({"level": "RequestResponse", "verbs": ["create"]}, {"level": "Request", "verbs": ["patch"]})
    log = Written(tmp_path / "audit.log", *rules)
    assert log.ask("GET", PODS) == []
    created, patched = log.ask("POST", PODS, b'{"a": 1}') and log.ask("PATCH", f"{PODS}/a", b"a: 1")
    assert (created["requestObject"], created["responseObject"]) == ({"a": 1}, {"kind": "Pod"})
    assert (patched["requestObject"], "responseObject" in patched) == ("a: 1", False)


def test_late_refused_and_streaming_answers_are_written(tmp_path: Path) -> None:
    log = Written(tmp_path / "audit.log")

    async def late() -> Response:
        return Response(409)

    log.answer = late()
    log.ask("POST", PODS)
    log.answer = failures.render(ApiError(401, "Unauthorized", "Unauthorized"))
    log.ask("GET", PODS, authorization="wrong")
    log.answer = Streaming(lambda _: None)
    events = log.ask("GET", f"{PODS}?watch=true")
    assert [(e["verb"], e["responseStatus"]["code"], e["stage"]) for e in events] == [
        ("create", 409, "ResponseComplete"),
        ("list", 401, "ResponseComplete"),
        ("watch", 200, "ResponseStarted"),
    ]
    assert events[1]["user"] == {}


def test_a_full_disk_loses_events_and_no_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = AuditLog(settings(Path("/dev/full")), lambda _: USER, lambda _: Response(200), SystemClock())
    answers = [log.handle(Request("GET", PODS, {}, b"")) for _ in range(2)]
    log.close()
    assert answers == [Response(200), Response(200)]
    assert capsys.readouterr().err.count("audit events are lost") <= 1


def test_wrong_settings_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"audit\.file: .*No such file"):
        Written(tmp_path / "missing/audit.log")
    with pytest.raises(ConfigError, match=r"audit\.rules\[0\]\.level"):
        parse_config("audit: {file: /log, rules: [{level: Everything}]}", "cluster.yaml")
    with pytest.raises(ConfigError, match=r"audit\.file: log: expected an absolute path"):
        parse_config("audit: {file: log}", "cluster.yaml")
