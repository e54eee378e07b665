"""Webhook servers and their configurations."""

import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.embedded.apiserver.admission.scripted_webhook import HOOKS, RULE, Script, ScriptedWebhook

from podwire.http.server import HttpServer
from podwire.http.tls import server_context
from podwire.runtime.clock import SystemClock
from podwire.runtime.tasks import TaskSet


@pytest.fixture
def serve(credentials: Path) -> Callable[[Script], Any]:
    @asynccontextmanager
    async def run(script: Script) -> AsyncIterator[ScriptedWebhook]:
        hook = ScriptedWebhook(script)
        server = HttpServer(hook.answer, TaskSet(lambda *_: None), SystemClock())
        tls = server_context(str(credentials / "server.crt"), str(credentials / "server.key"))
        host, port = await server.listen("127.0.0.1", 0, tls)
        hook.url = f"https://{host}:{port}"
        try:
            yield hook
        finally:
            await server.close()

    return run


@pytest.fixture
def configure(credentials: Path) -> Callable[..., Any]:
    bundle = base64.b64encode((credentials / "ca.crt").read_bytes()).decode()

    async def write(api: Any, url: str, kind: str = "Validating", name: str = "hooks", **fields: Any) -> None:
        hook = {
            "name": f"{name}.example.com", "clientConfig": {"url": url, "caBundle": bundle}, "rules": [RULE],
            "sideEffects": "None", "admissionReviewVersions": ["v1"], **fields,
        }  # fmt: skip
        body = {"metadata": {"name": name}, "webhooks": [hook]}
        status, answer = await api("POST", f"{HOOKS}/{kind.lower()}webhookconfigurations", body)
        assert status == 201, answer

    return write
