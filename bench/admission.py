"""Admission policies of the embedded API server: CPU time of a write that they look at.

One server without policies and one for each case are in this process, without sockets. Each round sends the same PUT of
a small ConfigMap to each of them, as a dry run, so that the disk has no part in it. CPU time is that of this process.

    python -m bench.admission [--quick]
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import msgspec
from bench.alone import run_alone
from bench.api import prepare
from bench.table import Row

from podwire.embedded.apiserver.server import ApiServer
from podwire.embedded.apiserver.settings import load
from podwire.http.message import Request, Response
from podwire.runtime.clock import SystemClock

Object = dict[str, Any]

MAPS = "/api/v1/namespaces/default/configmaps"
GROUP = "/apis/admissionregistration.k8s.io/v1"
ADMIN = {"subject": ((("organizationName", "system:masters"),), (("commonName", "admin"),))}
RULE = {"operations": ["CREATE", "UPDATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}
SHORT = {"expression": "object.data.size() < 10"}
ALLOWED = "authorizer.group('').resource('pods').namespace('default').check('get').allowed()"


def policy(rule: Object, **spec: Any) -> Object:
    """The spec of a policy with one rule."""
    return {"matchConstraints": {"resourceRules": [rule]}, "validations": [SHORT], **spec}


NONE = "no policies"
CASES: dict[str, list[Object]] = {
    NONE: [],
    "100 policies for other kinds": [policy({**RULE, "resources": ["secrets"]})] * 100,
    "a policy whose selector does not choose the object": [
        policy(RULE, matchConstraints={
            "resourceRules": [RULE], "objectSelector": {"matchLabels": {"app": "other"}},
        }),
    ],
    "a policy with a short validation": [policy(RULE)],
    "a policy with condition, variable and authorizer": [
        policy(
            RULE, matchConditions=[{"name": "c", "expression": "object.metadata.name.startsWith('c')"}],
            variables=[{"name": "most", "expression": "object.data.size() + 1"}],
            validations=[{"expression": f"object.data.size() < variables.most && {ALLOWED}"}],
        ),
    ],
}  # fmt: skip
"""The specs of the policies of each server."""


class Server:
    """A server with policies, and one ConfigMap in it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        settings = msgspec.structs.replace(load(prepare(folder)), listen=("127.0.0.1:0",))
        self._server = ApiServer(settings, SystemClock())

    async def start(self, policies: list[Object]) -> None:
        """Writes the policies, with a binding for each."""
        await self._server.start()
        for number, spec in enumerate(policies):
            name = f"p{number}"
            binding = {"policyName": name, "validationActions": ["Deny"]}
            for plural, body in (("policies", spec), ("policybindings", binding)):
                await self.ask(
                    "POST", f"{GROUP}/validatingadmission{plural}", {"metadata": {"name": name}, "spec": body}
                )
        await self.ask("POST", MAPS, {"metadata": {"name": "c"}, "data": {"k": "v"}})

    async def close(self) -> None:
        """Ends the server."""
        await self._server.close()

    async def ask(self, method: str, target: str, body: Object) -> None:
        """Sends a request.

        Raises: RuntimeError when it fails.
        """
        request = Request(method, target, {"content-type": "application/json"}, json.dumps(body).encode())
        request.peer_certificate = ADMIN
        result = self._server.api.handle(request)
        answer = await result if isinstance(result, Awaitable) else result
        if not isinstance(answer, Response) or answer.status >= 300:
            raise RuntimeError(f"{method} {target}: {answer}")

    async def put_us(self, count: int) -> float:
        """CPU time of one PUT in microseconds."""
        begun = time.process_time()
        for number in range(count):
            await self.ask("PUT", f"{MAPS}/c?dryRun=All", {"metadata": {"name": "c"}, "data": {"k": str(number)}})
        return (time.process_time() - begun) / count * 1e6


async def measure(folder: Path, rounds: int, count: int) -> dict[str, list[float]]:
    """Microseconds of CPU time a PUT, by case, one value a round; the servers take turns."""
    servers = {name: Server(folder / str(number)) for number, name in enumerate(CASES)}
    result: dict[str, list[float]] = {name: [] for name in CASES}
    try:
        for name, server in servers.items():
            await server.start(CASES[name])
            await server.put_us(count)
        for _ in range(rounds):
            for name, server in servers.items():
                result[name].append(await server.put_us(count))
    finally:
        for server in servers.values():
            await server.close()
    return result


def run(quick: bool) -> list[Row]:
    """The rows; with ``quick`` three short rounds."""
    rounds, count = (3, 50) if quick else (40, 150)
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(measure(Path(folder), rounds, count))
    beside = ((NONE, tuple(result[NONE])),)
    return [Row(name, "us", tuple(values), beside) for name, values in result.items() if name != NONE]


if __name__ == "__main__":
    run_alone("admission", __doc__, run)
