"""The audit log: an event of ``audit.k8s.io/v1`` for each request, as a line of a file.

An event is written when the answer is complete (stage ``ResponseComplete``), for streams and upgrades when they begin
(``ResponseStarted``). Refused requests are written too. Admission adds annotations: what Pod Security and policies
would refuse, and what webhooks and policies say. The file is flushed with each line and never rotated.
Requests pay for it only where the settings name a file: one identification of the user more, and one write.
"""

import os
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from podwire.embedded.apiserver.auditrules import AuditLevel, AuditSettings
from podwire.embedded.apiserver.authorization.requests import attributes_of
from podwire.embedded.apiserver.authorization.rules import RequestAttributes
from podwire.embedded.apiserver.calls import UserInfo
from podwire.errors import ApiError, ConfigError
from podwire.http.answer import Handler, Result
from podwire.http.message import Request, Response
from podwire.observe.log import Log
from podwire.runtime.clock import Clock, rfc3339

_encode = msgspec.json.Encoder().encode


class AuditLog:
    """Writes what a handler answers."""

    def __init__(
        self, settings: AuditSettings, user_of: Callable[[Request], UserInfo], handle: Handler, clock: Clock
    ) -> None:
        """Opens the file.

        Raises: ConfigError when that fails.
        """
        self._settings, self._user_of, self._handle, self._clock = settings, user_of, handle, clock
        self._log = Log("apiserver")
        self._failed = False
        try:
            self._file = os.open(settings.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as failure:
            raise ConfigError("apiserver", "audit.file", f"{settings.file}: {failure.strerror}") from failure

    def handle(self, request: Request) -> Result | Awaitable[Result]:
        """The handler's answer, which is written before the client gets it."""
        asked = attributes_of(request, request.segments())
        try:
            user = self._user_of(request)
        except ApiError:  # It is refused; the handler says why.
            user = None
        level = self._settings.level(user, asked)
        if level == "None":
            return self._handle(request)
        event = self._begun(request, asked, user, level)
        result = self._handle(request)
        if isinstance(result, Awaitable):
            return self._later(event, result)
        self._finish(event, result)
        return result

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)

    async def _later(self, event: dict[str, Any], result: Awaitable[Result]) -> Result:
        answer = await result
        self._finish(event, answer)
        return answer

    def _begun(
        self, request: Request, asked: RequestAttributes, user: UserInfo | None, level: AuditLevel
    ) -> dict[str, Any]:
        event: dict[str, Any] = {
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": level,
            "auditID": str(uuid.uuid4()),
            "requestURI": f"{request.raw_path}?{request.raw_query}" if request.raw_query else request.raw_path,
            "verb": asked.verb,
            "user": {"username": user.name, "groups": user.groups} if user else {},
            "userAgent": request.headers.get("user-agent", ""),
            "requestReceivedTimestamp": rfc3339(self._clock.now()),
            "annotations": request.annotations,
        }
        if impersonated := request.headers.get("impersonate-user"):
            event["impersonatedUser"] = {"username": impersonated}
        if not asked.path:
            reference = {
                "resource": asked.resource, "namespace": asked.namespace, "name": asked.name,
                "apiGroup": asked.group, "apiVersion": asked.version, "subresource": asked.subresource,
            }  # fmt: skip
            event["objectRef"] = {key: value for key, value in reference.items() if value}
        if level in ("Request", "RequestResponse") and request.body:
            event["requestObject"] = _document(request.body)
        return event

    def _finish(self, event: dict[str, Any], result: Result) -> None:
        complete = isinstance(result, Response)
        if not event["annotations"]:
            del event["annotations"]
        event["stage"] = "ResponseComplete" if complete else "ResponseStarted"
        event["responseStatus"] = {"code": result.status if isinstance(result, Response) else 200}
        event["stageTimestamp"] = rfc3339(self._clock.now())
        if event["level"] == "RequestResponse" and isinstance(result, Response):
            event["responseObject"] = _document(result.body)
        try:
            os.write(self._file, _encode(event) + b"\n")
        except OSError as failure:
            if not self._failed:
                self._failed = True
                self._log.error("audit events are lost", failure=failure, file=self._settings.file)


def _document(body: bytes) -> Any:
    """A body as JSON; as text where it is something else."""
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body.decode("utf-8", "replace")
