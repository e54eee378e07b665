"""The access log as Envoy's JSON: a line for each request, and for each connection that is not read as HTTP."""

from podwire.gateway.envoy.clusters import Json, typed
from podwire.gateway.envoy.settings import EngineSettings

_REQUEST = {
    "time": "%START_TIME%",
    "client": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
    "method": "%REQ(:METHOD)%",
    "scheme": "%REQ(X-FORWARDED-PROTO)%",
    "host": "%REQ(:AUTHORITY)%",
    "path": "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%",
    "protocol": "%PROTOCOL%",
    "status": "%RESPONSE_CODE%",
    "details": "%RESPONSE_CODE_DETAILS%",
    "flags": "%RESPONSE_FLAGS%",
    "route": "%ROUTE_NAME%",
    "backend": "%UPSTREAM_CLUSTER%",
    "endpoint": "%UPSTREAM_HOST%",
    "received_bytes": "%BYTES_RECEIVED%",
    "sent_bytes": "%BYTES_SENT%",
    "duration_ms": "%DURATION%",
    "request_id": "%REQ(X-REQUEST-ID)%",
    "user_agent": "%REQ(USER-AGENT)%",
}
_STREAM = {
    "time": "%START_TIME%",
    "client": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
    "server_name": "%REQUESTED_SERVER_NAME%",
    "flags": "%RESPONSE_FLAGS%",
    "backend": "%UPSTREAM_CLUSTER%",
    "endpoint": "%UPSTREAM_HOST%",
    "received_bytes": "%BYTES_RECEIVED%",
    "sent_bytes": "%BYTES_SENT%",
    "duration_ms": "%DURATION%",
}


def request_logs(settings: EngineSettings) -> list[Json]:
    """The log of requests; none without a file."""
    return [_log(settings, _REQUEST)] if settings.access_log else []


def stream_logs(settings: EngineSettings, source: str) -> list[Json]:
    """The log of connections of a route; none without a file."""
    return [_log(settings, {**_STREAM, "route": source.replace("%", "%%")})] if settings.access_log else []


def _log(settings: EngineSettings, fields: dict[str, str]) -> Json:
    return {
        "name": "access",
        "typedConfig": typed(
            "envoy.extensions.access_loggers.file.v3.FileAccessLog",
            path=settings.access_log,
            logFormat={"jsonFormat": fields},
        ),
    }
