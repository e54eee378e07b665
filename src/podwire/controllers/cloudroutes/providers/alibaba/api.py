"""Calls of Alibaba Cloud's APIs for instances (ECS) and networks (VPC), with their failures as podwire's own.

The client is podwire's: the official one needs a package for each product. A call is an HTTPS POST with a signature
(:mod:`.signature`); it is not repeated here, because the controller's loop repeats the run with a backoff.

Credentials come from the environment (``ALIBABA_CLOUD_ACCESS_KEY_ID``, ``ALIBABA_CLOUD_ACCESS_KEY_SECRET``,
``ALIBABA_CLOUD_SECURITY_TOKEN``), or from the metadata of the instance for the RAM role of the options, and are read
again before they expire.
"""

import datetime
import os
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError

import msgspec

from podwire.controllers.cloudroutes.providers.alibaba import signature
from podwire.controllers.cloudroutes.providers.alibaba.options import AlibabaOptions
from podwire.controllers.cloudroutes.settings import SOURCE
from podwire.errors import CloudError, CloudUnavailable, ConfigError
from podwire.runtime.clock import SystemClock

_TIMEOUT_S = 20.0
_METADATA_S = 3.0
_EARLY = datetime.timedelta(minutes=5)
_UNAVAILABLE = (
    "Forbidden",
    "InternalError",
    "InvalidAccessKeyId",
    "InvalidSecurityToken",
    "InvalidTimeStamp",
    "ServiceUnavailable",
    "SignatureDoesNotMatch",
    "SignatureNonceUsed",
    "Throttling",
)
"""How codes begin that say nothing about the question itself."""
_ROLE_PATH = "/latest/meta-data/ram/security-credentials/"


class CloudApi(msgspec.Struct, frozen=True):
    """An API: its name in public addresses, and the version of its calls."""

    name: str
    version: str


ECS, VPC = CloudApi("ecs", "2014-05-26"), CloudApi("vpc", "2016-04-28")


class Credentials(msgspec.Struct, frozen=True, rename="pascal"):
    """An access key, as the metadata of an instance shows it; ``expiration`` None: it does not expire."""

    access_key_id: str
    access_key_secret: str
    security_token: str = ""
    expiration: datetime.datetime | None = None


class AlibabaApi:
    """The APIs of one region; ``now`` gives the wall-clock instant, None: that of the system."""

    def __init__(self, options: AlibabaOptions, now: Callable[[], datetime.datetime] | None = None) -> None:
        """Raises: ConfigError when the region or the credentials are missing."""
        if not options.region:
            raise ConfigError(SOURCE, "cloud.options.region", "is empty: expected a region, as cn-hangzhou")
        self._options = options
        self._now = now or SystemClock().now
        self._credentials = None if options.ram_role else _of_environment()

    def call(self, service: CloudApi, action: str, **parameters: Any) -> dict[str, Any]:
        """The answer to one call; a list among the parameters becomes numbered ones.

        Raises: CloudUnavailable; CloudError.
        """
        credentials = self._current(action)
        common = {
            "AccessKeyId": credentials.access_key_id,
            "Action": action,
            "Format": "JSON",
            "RegionId": self._options.region,
            "SecurityToken": credentials.security_token,
            "SignatureMethod": signature.METHOD,
            "SignatureNonce": uuid.uuid4().hex,
            "SignatureVersion": signature.VERSION,
            "Timestamp": self._now().astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "Version": service.version,
        }
        flat = signature.flattened(common | parameters)
        flat["Signature"] = signature.signature(flat, credentials.access_key_secret)
        request = urllib.request.Request(self._address(service), signature.canonical_query(flat).encode())
        return _answer(action, request, _TIMEOUT_S)

    def pages(self, service: CloudApi, action: str, path: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        """The objects below ``path`` (``List.Item``) of all answers with a token for the next one.

        Raises: CloudUnavailable; CloudError.
        """
        token = ""
        while True:
            answer = self.call(service, action, **parameters, NextToken=token)
            yield from listed(answer, path)
            token = str(answer.get("NextToken") or "")
            if not token:
                return

    def numbered_pages(self, service: CloudApi, action: str, path: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        """The same for calls whose answers have numbers.

        Raises: CloudUnavailable; CloudError.
        """
        number, size = 1, 50
        while True:
            answer = self.call(service, action, **parameters, PageNumber=number, PageSize=size)
            yield from listed(answer, path)
            if number * size >= int(answer.get("TotalCount", 0)):
                return
            number += 1

    def _address(self, service: CloudApi) -> str:
        chosen = self._options.ecs_endpoint if service is ECS else self._options.vpc_endpoint
        return chosen or f"https://{service.name}.{self._options.region}.aliyuncs.com/"

    def _current(self, action: str) -> Credentials:
        """The credentials, read from the metadata of the instance when they are about to expire."""
        known = self._credentials
        if known is None or (known.expiration is not None and self._now() >= known.expiration - _EARLY):
            address = f"{self._options.metadata_endpoint}{_ROLE_PATH}{self._options.ram_role}"
            document = _answer(action, urllib.request.Request(address), _METADATA_S)
            try:
                known = msgspec.convert(document, Credentials)
            except msgspec.ValidationError as failure:
                raise CloudUnavailable(action, "", f"{address}: {failure}") from failure
            self._credentials = known
        return known


def listed(document: dict[str, Any], path: str) -> list[Any]:
    """The list below ``path``; empty when the document lacks it."""
    inner: Any = document
    for field in path.split("."):
        inner = (inner or {}).get(field)
    return list(inner or ())


def _of_environment() -> Credentials:
    key, secret = (os.environ.get(f"ALIBABA_CLOUD_ACCESS_KEY_{part}", "") for part in ("ID", "SECRET"))
    if not key or not secret:
        problem = "no credentials: expected cloud.options.ramRole, or ALIBABA_CLOUD_ACCESS_KEY_ID and _SECRET"
        raise ConfigError(SOURCE, "cloud.provider", problem)
    return Credentials(key, secret, os.environ.get("ALIBABA_CLOUD_SECURITY_TOKEN", ""))


def _answer(action: str, request: urllib.request.Request, timeout_s: float) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return _document(action, answer.read())
    except HTTPError as failure:
        raise _refusal(action, failure) from failure
    except (OSError, HTTPException) as failure:
        raise CloudUnavailable(action, "", str(failure)) from failure


def _document(action: str, body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError as failure:
        raise CloudUnavailable(action, "", f"the answer is no JSON object: {failure}") from failure


def _refusal(action: str, failure: HTTPError) -> CloudError:
    document = _document(action, failure.read() or b"{}")
    code, message = str(document.get("Code", "")), str(document.get("Message", failure))
    kind = CloudUnavailable if not code or code.startswith(_UNAVAILABLE) or failure.code >= 500 else CloudError
    return kind(action, code, message)
