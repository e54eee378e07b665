"""What kube-apiserver answers and podwire's own server does not.

Priority and fairness, rotated tokens, credential programs, rights that are not there yet, lists that expire midway. The
answers have the form that the sources of Kubernetes give them (apiserver ``pkg/server/filters``, apimachinery
``pkg/api/errors``).
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import scripted_http as http

from podwire.errors import ApiError
from podwire.kube.client import Client
from podwire.kube.config import ApiConfig, load_kubeconfig
from podwire.kube.informer import Informer
from podwire.kube.optional import list_if_served
from podwire.kube.resources import CONFIGMAPS, EGRESSPOLICIES, PODS
from podwire.runtime.clock import SystemClock

Answer = tuple[int, dict[str, str], bytes]
TOO_MANY: Answer = (429, {"retry-after": "0"}, b"Too many requests, please try again later.\n")
"""Priority and fairness answers with a text, not with a Status."""
UNAUTHORIZED: Answer = (
    401, {},
    b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Unauthorized","reason":'
    b'"Unauthorized","code":401}\n',
)  # fmt: skip
FORBIDDEN: Answer = (
    403, {},
    b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"pods is forbidden: User '
    b'\\"system:serviceaccount:kube-system:podwire-agent\\" cannot list resource \\"pods\\" in API group \\"\\" at the '
    b'cluster scope: RBAC: clusterrole.rbac.authorization.k8s.io \\"podwire-agent\\" not found","reason":"Forbidden",'
    b'"details":{"kind":"pods"},"code":403}\n',
)  # fmt: skip
EXPIRED: Answer = (
    410, {},
    b'{"kind":"Status","apiVersion":"v1","metadata":{"continue":"x","remainingItemCount":1},"status":"Failure",'
    b'"message":"The provided continue parameter is too old to display a consistent list result.","reason":"Expired",'
    b'"code":410}\n',
)  # fmt: skip
EVICTION: Answer = (
    429, {"retry-after": "10"},
    b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Cannot evict pod as it would '
    b'violate the pod\'s disruption budget.","reason":"TooManyRequests","details":{"causes":[{"reason":'
    b'"DisruptionBudget","message":"The disruption budget web needs 2 healthy pods and has 2 currently"}]},"code":429}',
)  # fmt: skip
NOT_SERVED: Answer = (404, {"content-type": "text/plain; charset=utf-8"}, b"404 page not found\n")
"""A group that no definition has is answered with a text, too."""
FOUND: Answer = (200, {}, b'{"kind":"ConfigMap","metadata":{"name":"a"}}')


def write(writer: asyncio.StreamWriter, answer: Answer) -> bool:
    status, headers, body = answer
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"HTTP/1.1 {status} X\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body)
    return True


def talk(
    answers: Iterator[Answer] | Callable[[http.ReceivedRequest], Answer],
    body: Callable[[Client], Awaitable[Any]],
    config: Callable[[str], ApiConfig] = ApiConfig,
) -> list[http.ReceivedRequest]:
    """Runs ``body`` against a server with these answers; returns the requests."""

    async def handler(received: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        return write(writer, answers(received) if callable(answers) else next(answers))

    async def run() -> list[http.ReceivedRequest]:
        async with http.ScriptedServer(handler) as server:
            client = Client(config(f"http://127.0.0.1:{server.port}"), SystemClock())
            try:
                await body(client)
            finally:
                await client.close()
            return server.received

    return asyncio.run(run())


def test_full_queues_are_waited_for_in_reads_and_writes() -> None:
    async def body(client: Client) -> None:
        assert (await client.get(CONFIGMAPS, "a", "d"))["metadata"]["name"] == "a"
        await client.create(CONFIGMAPS, {"metadata": {"name": "a"}}, "d")

    received = talk(iter([TOO_MANY, TOO_MANY, FOUND, TOO_MANY, FOUND]), body)
    assert [request.method for request in received] == ["GET", "GET", "GET", "POST", "POST"]
    assert received[3].body == received[4].body


def test_a_server_that_never_has_time_is_an_error() -> None:
    async def body(client: Client) -> None:
        with pytest.raises(ApiError, match="Too many requests") as refused:
            await client.get(CONFIGMAPS, "a", "d")
        assert refused.value.code == 429

    assert len(talk(iter([TOO_MANY] * 11), body)) == 11


def test_a_disruption_budget_is_an_answer() -> None:
    async def body(client: Client) -> None:
        with pytest.raises(ApiError, match="disruption budget"):
            await client.create(PODS, {}, "d", name="a", subresource="eviction")

    assert len(talk(iter([EVICTION]), body)) == 1


def test_a_group_that_is_not_served_has_no_objects() -> None:
    async def body(client: Client) -> None:
        assert await list_if_served(client, EGRESSPOLICIES) == ()

    assert len(talk(iter([NOT_SERVED]), body)) == 1


def test_a_rotated_token_is_read_again_at_once(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old")

    def answer(received: http.ReceivedRequest) -> Answer:
        if received.headers["authorization"] == "bearer old":
            file.write_text("new")  # as the kubelet does
            return UNAUTHORIZED
        return FOUND

    async def body(client: Client) -> None:
        await client.create(CONFIGMAPS, {}, "d")
        await client.get(CONFIGMAPS, "a", "d")

    received = talk(answer, body, lambda server: ApiConfig(server, token_file=file))
    tokens = [request.headers["authorization"] for request in received]
    assert tokens == ["bearer old", "bearer new", "bearer new"]


def test_a_refused_token_that_did_not_rotate_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old")

    async def body(client: Client) -> None:
        with pytest.raises(ApiError, match="Unauthorized"):
            await client.get(CONFIGMAPS, "a", "d")

    assert len(talk(iter([UNAUTHORIZED]), body, lambda server: ApiConfig(server, token_file=file))) == 1


def test_a_credential_program_runs_once_and_after_a_refusal(tmp_path: Path) -> None:
    """The clock of the server is ahead: a token that is valid here has expired there."""
    script = tmp_path / "get-token"
    counter = tmp_path / "count"
    script.write_text(
        f"#!/bin/sh\necho x >> {counter}\n"
        'printf \'{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"t%s"}}\''
        f" $(wc -l < {counter})\n"
    )
    script.chmod(0o755)

    def config(server: str) -> ApiConfig:
        entry = {"apiVersion": "client.authentication.k8s.io/v1", "command": "./get-token"}
        document = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {"exec": entry}}],
        }
        (tmp_path / "config").write_text(json.dumps(document))
        return load_kubeconfig(tmp_path / "config")

    answers = iter([FOUND, FOUND, UNAUTHORIZED, FOUND, UNAUTHORIZED, UNAUTHORIZED])

    async def body(client: Client) -> None:
        for _ in range(3):
            await client.get(CONFIGMAPS, "a", "d")
        with pytest.raises(ApiError, match="Unauthorized"):
            await client.get(CONFIGMAPS, "a", "d")

    tokens = [request.headers["authorization"] for request in talk(answers, body, config)]
    assert tokens == [f"bearer t{number}" for number in (1, 1, 1, 2, 2, 3)]


def pods(version: str, *names: str, more: str = "") -> Answer:
    items = [{"metadata": {"name": name, "namespace": "d", "resourceVersion": "1"}} for name in names]
    meta = {"resourceVersion": version, "continue": more}
    return 200, {}, json.dumps({"kind": "PodList", "metadata": meta, "items": items}).encode()


def follow(lists: list[Answer], watches: list[Answer], until: Callable[[Informer[Any], list[str]], bool]) -> list[str]:
    """Runs an informer; the targets of its requests. A watch without a scripted answer stays open."""
    targets: list[str] = []

    async def handler(received: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        targets.append(received.target)
        if "watch=true" not in received.target:
            return write(writer, lists.pop(0))
        if watches:
            return write(writer, watches.pop(0))
        http.open_stream(writer)
        await writer.drain()
        await asyncio.sleep(60)
        return False

    async def run() -> None:
        async with http.ScriptedServer(handler) as server:
            client = Client(ApiConfig(f"http://127.0.0.1:{server.port}"), SystemClock())
            informer = Informer(client, PODS)
            async with asyncio.TaskGroup() as group:
                task = group.create_task(informer.run())
                async with asyncio.timeout(30):
                    while not until(informer, targets):  # noqa: ASYNC110
                        await asyncio.sleep(0.005)
                task.cancel()
            await client.close()
            for waiting in asyncio.all_tasks() - {asyncio.current_task()}:
                waiting.cancel()

    asyncio.run(run())
    return targets


def watched(targets: list[str]) -> list[bool]:
    return ["watch=true" in target for target in targets]


def test_rights_that_come_later_are_waited_for() -> None:
    """The roles of the chart may be created behind the agents."""
    targets = follow([FORBIDDEN, FORBIDDEN, pods("7", "a")], [], lambda informer, _: "d/a" in informer.objects)
    assert watched(targets)[:3] == [False, False, False]


@pytest.mark.parametrize("refusal", [TOO_MANY, UNAUTHORIZED, FORBIDDEN, (503, {"retry-after": "0"}, b"starting")])
def test_a_refused_watch_goes_on_where_it_was(refusal: Answer) -> None:
    targets = follow([pods("7", "a")], [refusal, refusal], lambda _, requests: len(requests) == 4)
    assert watched(targets) == [False, True, True, True], "no list: it would cost the server more"
    assert all("resourceVersion=7" in target for target in targets[1:])


def test_a_list_that_expires_midway_begins_again() -> None:
    lists = [pods("7", "a", more="x"), EXPIRED, pods("9", "a", "b")]
    targets = follow(lists, [], lambda informer, requests: "d/b" in informer.objects and len(requests) == 4)
    assert ["continue=x" in target for target in targets[:3]] == [False, True, False]
    assert "resourceVersion=9" in targets[3]
