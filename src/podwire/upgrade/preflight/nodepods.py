"""Reads the configurations of networks on every node by a pod that lists their directory, and removes the pods again.

The API does not tell what the container runtime of a node reads. A pod per node, ten at the same time, mounts the
directory read-only, lists it, and ends. Pods of an interrupted run have the label ``app.kubernetes.io/name=
podwire-preflight`` and are removed by the next run.
"""

import asyncio
from collections.abc import Iterable

from podwire.errors import ApiError, NotFound
from podwire.kube.client import Client
from podwire.kube.resources import PODS, Json
from podwire.upgrade.plan.values import UpgradeFinding

NAME = "podwire-preflight"
NAMESPACE = "kube-system"
DIRECTORY = "/etc/cni/net.d"
DIRECTORIES = {"k3s": "/var/lib/rancher/k3s/agent/etc/cni/net.d"}
"""The directories of layouts that have another one."""
_ENDINGS = (".conf", ".conflist", ".json")
"""What container runtimes read as a configuration."""
_PARALLEL = 10
_PULL_S = 60
"""Seconds that a node has for the image, and for a directory that is missing."""
_LIMIT_S = 120.0
_POLL_S = 0.3


def pod_of(node: str, image: str, directory: str) -> Json:
    """The pod that lists a directory of a node."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": f"{NAME}-", "labels": {"app.kubernetes.io/name": NAME}},
        "spec": {
            "nodeName": node,
            "hostNetwork": True,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": _PULL_S,
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {
                    "name": "list",
                    "image": image,
                    "command": ["ls", "-1", directory],
                    "volumeMounts": [{"name": "configurations", "mountPath": directory, "readOnly": True}],
                }
            ],
            "volumes": [{"name": "configurations", "hostPath": {"path": directory, "type": "Directory"}}],
        },
    }


def configurations(listing: str) -> tuple[str, ...]:
    """The configurations of a listing in the order in which a container runtime takes them."""
    return tuple(sorted(line.strip() for line in listing.splitlines() if line.strip().endswith(_ENDINGS)))


async def read_configurations(
    client: Client, nodes: Iterable[str], image: str, directory: str
) -> tuple[dict[str, tuple[str, ...]], tuple[UpgradeFinding, ...]]:
    """By node its configurations, and a warning for each node that could not be read.

    Raises: ApiUnreachable.
    """
    await _remove_earlier(client)
    gate = asyncio.Semaphore(_PARALLEL)
    results: dict[str, tuple[str, ...]] = {}
    problems: dict[str, str] = {}

    async def read(node: str) -> None:
        async with gate:
            try:
                succeeded, text = await _run(client, pod_of(node, image, directory))
            except ApiError as failure:
                problems[node] = str(failure)
                return
            if succeeded:
                results[node] = configurations(text)
            else:
                problems[node] = text.strip().partition("\n")[0] or f"the pod did not end within {_LIMIT_S:.0f} s"

    names = list(nodes)
    for failure in await asyncio.gather(*map(read, names), return_exceptions=True):
        if failure is not None:
            raise failure
    findings = tuple(
        UpgradeFinding(
            severity="warning",
            object=f"Node {node}",
            field=directory,
            message=f"could not be read: {problems[node]}",
            remedy="look at the directory yourself, or give an image that the node can start",
        )
        for node in names
        if node in problems
    )
    return results, findings


async def _run(client: Client, body: Json) -> tuple[bool, str]:
    """Runs a pod to its end; whether it succeeded, and its log."""
    name = str((await client.create(PODS, body, NAMESPACE))["metadata"]["name"])
    try:
        until = client.clock.monotonic() + _LIMIT_S
        while True:
            phase = (await client.get(PODS.raw, name, NAMESPACE)).get("status", {}).get("phase", "")
            if phase in ("Succeeded", "Failed"):
                break
            if client.clock.monotonic() > until:
                return False, ""
            await client.clock.sleep(_POLL_S)
        answer = await client.raw("GET", PODS.path(NAMESPACE, name, "log"))
        return phase == "Succeeded", answer.body.decode(errors="replace") if answer.status < 400 else ""
    finally:
        await _delete(client, name)


async def _remove_earlier(client: Client) -> None:
    page = await client.list(PODS.raw, NAMESPACE, label_selector=f"app.kubernetes.io/name={NAME}")
    for pod in page.items:
        await _delete(client, pod["metadata"]["name"])


async def _delete(client: Client, name: str) -> None:
    try:
        await client.delete(PODS, name, NAMESPACE, grace_period_s=0)
    except NotFound:
        pass
