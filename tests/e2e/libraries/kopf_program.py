"""kopf: an operator that answers each ConfigMap of the client with an annotation, and keeps it until it has cleaned up.

The operator runs in this process; the changes are made through kopf's own client too.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import time
from typing import Any

import kopf
from tests.e2e.libraries import checks

NAMESPACE = checks.namespace()
NAME = f"kopf-{time.monotonic_ns()}"
LABEL = {"of": NAME}
WITHIN_S = 20.0

called = {word: asyncio.Event() for word in ("created", "updated", "deleted")}


@kopf.on.create("configmaps", labels=LABEL)
def created(patch: kopf.Patch, **_: Any) -> None:
    called["created"].set()
    patch.metadata.annotations["answered"] = "yes"


@kopf.on.update("configmaps", labels=LABEL, field="data")
def updated(body: kopf.Body, **_: Any) -> None:
    called["updated"].set()
    kopf.event(body, type="Normal", reason="Updated", message="the data changed")


@kopf.on.delete("configmaps", labels=LABEL)
def deleted(**_: Any) -> None:
    called["deleted"].set()


async def kubectl(*arguments: str) -> str:
    """The output of kubectl."""
    return await asyncio.to_thread(
        subprocess.check_output, ["kubectl", "-n", NAMESPACE, *arguments], text=True, env=dict(os.environ)
    )


async def until(handler: str) -> None:
    """Waits until a handler has been called."""
    await asyncio.wait_for(called[handler].wait(), WITHIN_S)


async def change_objects() -> None:
    await kubectl("create", "configmap", NAME, "--from-literal=a=1")
    await kubectl("label", "configmap", NAME, f"of={NAME}")
    await until("created")
    async with asyncio.timeout(WITHIN_S):
        while True:
            metadata = json.loads(await kubectl("get", "configmap", NAME, "-o", "json"))["metadata"]
            if metadata.get("annotations", {}).get("answered") == "yes":
                break
    assert metadata["finalizers"] == ["kopf.zalando.org/KopfFinalizerMarker"], metadata
    await kubectl("patch", "configmap", NAME, "--type=merge", "-p", '{"data":{"a":"2"}}')
    await until("updated")
    await kubectl("delete", "configmap", NAME, "--timeout=20s")
    await until("deleted")


async def post_events() -> None:
    async with asyncio.timeout(WITHIN_S):
        while True:
            if "the data changed" in await kubectl("get", "events", "-o", "wide"):
                return


async def main() -> None:
    ready, stop = asyncio.Event(), asyncio.Event()
    settings = kopf.OperatorSettings()
    settings.watching.server_timeout = 30
    operator = asyncio.create_task(
        kopf.operator(namespaces=[NAMESPACE], standalone=True, settings=settings, ready_flag=ready, stop_flag=stop)
    )
    await asyncio.wait_for(ready.wait(), WITHIN_S)
    await checks.run_async({checks.OBJECTS: change_objects, "events": post_events})
    stop.set()
    with contextlib.suppress(asyncio.CancelledError):
        await operator


asyncio.run(main())
