"""What every client library is asked to do, and how a program reports that it did.

A program of this folder gets the kubeconfig in ``KUBECONFIG`` and a namespace as its argument. The namespace holds the
pod ``box``, which has printed the lines ``first`` and ``second`` and goes on, and the pod ``web``, which answers HTTP
on port 80. The program prints one JSON object: the name of each check with ``ok`` or what went wrong.
"""

import asyncio
import json
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping

OBJECTS = "objects"
"""Create, patch, replace and delete an object; a stale replacement is a conflict."""
LIST = "list"
"""List objects by label, in pages."""
WATCH = "watch"
"""Watch changes that were made after a list."""
LOG = "log"
"""Read the last line of a log with its time, then follow the log."""
EXEC = "exec"
"""Run a command, read both outputs and the exit status."""
EXEC_INPUT = "exec with input"
"""Run a command that reads its input."""
PORT_FORWARD = "port-forward"
"""Send a request to a port of a pod."""

Check = Callable[[], object]
AsyncCheck = Callable[[], Awaitable[object]]


def namespace() -> str:
    """The namespace that the program works in."""
    return sys.argv[1]


def run(checks: Mapping[str, Check]) -> None:
    """Runs checks one after the other and prints what came of them."""
    results = {}
    for name, check in checks.items():
        try:
            check()
            results[name] = "ok"
        except Exception:  # noqa: BLE001 - whatever a library raises belongs into the report
            results[name] = traceback.format_exc()
    print(json.dumps(results))


async def run_async(checks: Mapping[str, AsyncCheck]) -> None:
    """Runs checks that are coroutines one after the other and prints what came of them."""
    results = {}
    for name, check in checks.items():
        try:
            async with asyncio.timeout(30):
                await check()
            results[name] = "ok"
        except Exception:  # noqa: BLE001 - whatever a library raises belongs into the report
            results[name] = traceback.format_exc()
    print(json.dumps(results))
