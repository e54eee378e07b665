"""Calls of the EC2 API by boto3, with its failures as podwire's own.

boto3 is part of the extra ``podwire[aws]`` and is imported when a client is made. A call that the API throttles, or
that gets no answer, is repeated by botocore (mode ``standard``: three attempts with a random backoff of up to 20 s).
"""

import os
from collections.abc import Iterator
from typing import Any

from podwire.controllers.cloudroutes.providers.aws.options import AwsOptions
from podwire.controllers.cloudroutes.settings import SOURCE
from podwire.errors import CloudError, CloudUnavailable, ConfigError

_CONNECT_S, _READ_S, _ATTEMPTS = 5, 20, 3
_UNAVAILABLE = {
    "AuthFailure",
    "ExpiredToken",
    "ExpiredTokenException",
    "InternalError",
    "InternalFailure",
    "InvalidClientTokenId",
    "RequestExpired",
    "RequestLimitExceeded",
    "RequestThrottled",
    "ServiceUnavailable",
    "SignatureDoesNotMatch",
    "Throttling",
    "ThrottlingException",
    "Unavailable",
    "UnauthorizedOperation",
    "UnrecognizedClientException",
}
"""Codes that say nothing about the question itself (EC2 API reference, "Error codes")."""


class Ec2:
    """A client of the EC2 API in one region."""

    def __init__(self, options: AwsOptions) -> None:
        """Raises: ConfigError when boto3, the region or the credentials are missing."""
        try:
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError as failure:
            problem = f"the cloud aws needs the package boto3 ({failure}): pip install 'podwire[aws]'"
            raise ConfigError(SOURCE, "cloud.provider", problem) from failure
        self._client_error, self._botocore_error = ClientError, BotoCoreError
        # AWS's own programs read AWS_REGION; botocore reads AWS_DEFAULT_REGION alone.
        region = options.region or os.environ.get("AWS_REGION") or None
        try:
            session = boto3.session.Session(region_name=region)
            if session.get_credentials() is None:
                problem = "no AWS credentials: expected a role of the instance or pod, or AWS_ACCESS_KEY_ID and so on"
                raise ConfigError(SOURCE, "cloud.provider", problem)
            retries: Any = {"mode": "standard", "total_max_attempts": _ATTEMPTS}
            config = Config(connect_timeout=_CONNECT_S, read_timeout=_READ_S, retries=retries)
            self.client: Any = session.client("ec2", endpoint_url=options.endpoint or None, config=config)
        except (BotoCoreError, ValueError) as failure:
            raise ConfigError(SOURCE, "cloud.options", str(failure)) from failure

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """The answer to one call.

        Raises: CloudUnavailable; CloudError.
        """
        try:
            answer: dict[str, Any] = getattr(self.client, operation)(**parameters)
        except self._client_error as failure:
            raise _refusal(operation, failure) from failure
        except self._botocore_error as failure:
            raise CloudUnavailable(operation, "", str(failure)) from failure
        return answer

    def pages(self, operation: str, key: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        """The objects below ``key`` of all pages of an answer.

        Raises: CloudUnavailable; CloudError.
        """
        try:
            for page in self.client.get_paginator(operation).paginate(**parameters):
                yield from page.get(key, ())
        except self._client_error as failure:
            raise _refusal(operation, failure) from failure
        except self._botocore_error as failure:
            raise CloudUnavailable(operation, "", str(failure)) from failure


def _refusal(operation: str, failure: Any) -> CloudError:
    error = failure.response.get("Error", {})
    code, message = str(error.get("Code", "")), str(error.get("Message", failure))
    status = failure.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    kind = CloudUnavailable if code in _UNAVAILABLE or status >= 500 else CloudError
    return kind(operation, code, message)
