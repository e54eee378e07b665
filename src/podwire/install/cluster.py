"""Installs podwire in a cluster: renders the chart, checks the cluster, applies the objects, waits for readiness.

Objects are applied by server-side apply with the field manager ``podwire-install``, in the order of their dependencies.
A dry run sends the same requests with ``dryRun=All``, so that it tells what the API server would do and refuse. The
chart is rendered by ``helm template``; a manifest that was rendered before needs no Helm.
"""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import yaml

from podwire.errors import ApiError, ClusterError, ConfigError, NotFound
from podwire.install.clusterchecks import ClusterFacts
from podwire.install.objects import MANAGER, WORKLOADS, difference, parse, resource_of, title, unready
from podwire.kube.client import Client
from podwire.kube.resources import DAEMONSETS, DEPLOYMENTS, NODES, SERVICES, Json
from podwire.kube.serverside import ApplyRequest, apply_object

NAMESPACE = "kube-system"
_PAUSE_S = 0.5


def render(chart: Path, values: Iterable[str], settings: Iterable[str]) -> tuple[Json, ...]:
    """The objects of a chart with files of values and settings ``KEY=VALUE``.

    Raises: ConfigError when Helm is missing or refuses the values.
    """
    helm = shutil.which("helm")
    if helm is None:
        raise ConfigError("--chart", "", "helm, which renders the chart, is not installed; give --manifest instead")
    command = [helm, "template", "podwire", str(chart), "--namespace", NAMESPACE, "--include-crds"]
    command += [word for file in values for word in ("--values", file)]
    command += [word for text in settings for word in ("--set", text)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(str(chart), "", done.stderr.strip().removeprefix("Error: "))
    return parse(yaml.load_all(done.stdout, Loader=yaml.CSafeLoader), str(chart))


def read_manifest(path: Path) -> tuple[Json, ...]:
    """The objects of a rendered manifest.

    Raises: ConfigError when it cannot be read, is not YAML, or has other objects.
    """
    try:
        return parse(yaml.load_all(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader), str(path))
    except (OSError, UnicodeDecodeError) as failure:
        raise ConfigError(str(path), "", f"cannot be read: {failure}") from failure
    except yaml.YAMLError as failure:
        raise ConfigError(str(path), "", f"is not YAML: {failure}") from failure


async def read_facts(client: Client) -> ClusterFacts:
    """The facts of the cluster.

    Raises: ApiError, ApiUnreachable.
    """
    version = msgspec.json.decode((await client.raw("GET", "/version")).body)
    numbers = [int(re.sub(r"\D.*", "", str(version.get(key, ""))) or 0) for key in ("major", "minor")]
    nodes = (await client.list(NODES)).items
    services = {f"{s.metadata.namespace}/{s.metadata.name}": s for s in (await client.list(SERVICES)).items}
    deployments = (await client.list(DEPLOYMENTS.raw)).items
    return ClusterFacts(
        version=(numbers[0], numbers[1]),
        daemonsets=tuple(_path(item) for item in (await client.list(DAEMONSETS.raw)).items),
        deployments=tuple(_path(item) for item in deployments if not item["metadata"]["name"].startswith("podwire-")),
        nodes={node.metadata.name: node.spec.pod_cidrs for node in nodes},
        kubernetes_ip=services["default/kubernetes"].spec.cluster_ip if "default/kubernetes" in services else "",
        dns_ip=services["kube-system/kube-dns"].spec.cluster_ip if "kube-system/kube-dns" in services else "",
    )


def _path(obj: Json) -> str:
    return f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"


async def apply(client: Client, objects: Iterable[Json], say: Callable[[str], None], *, dry: bool) -> None:
    """Applies the objects, and says for each what was done.

    Raises: ClusterError naming the object that the API refuses; ApiUnreachable.
    """
    verbs = {"create": "would create", "change": "would change", "leave": "would leave as it is:"}
    if not dry:
        verbs = {"create": "created", "change": "changed", "leave": "left as it is:"}
    for obj in objects:
        resource, meta = resource_of(obj), obj["metadata"]
        namespace = meta.get("namespace", "")
        try:
            before = await client.get(resource, meta["name"], namespace)
        except NotFound:
            before = None
        try:
            after = await apply_object(client, resource, obj, ApplyRequest(manager=MANAGER, force=True, dry=dry))
        except ApiError as failure:
            raise ClusterError(f"{title(obj)}: {_reason(failure, obj)}") from failure
        say(f"{verbs[difference(before, after)]} {title(obj)}")


def _reason(failure: ApiError, obj: Json) -> str:
    if isinstance(failure, NotFound) and obj["apiVersion"].startswith("monitoring.coreos.com/"):
        return "the cluster has no Prometheus operator; install it first, or set serviceMonitor.enabled to false"
    return str(failure)


async def wait(client: Client, objects: Iterable[Json], limit_s: float) -> None:
    """Waits until all workloads among the objects are ready.

    Raises: ClusterError after the limit, naming what is not ready.
    """
    waiting = [obj for obj in objects if obj["kind"] in WORKLOADS]
    until = client.clock.monotonic() + limit_s
    while True:
        problems: dict[str, str] = {}
        for obj in waiting:
            meta: dict[str, Any] = obj["metadata"]
            current = await client.get(resource_of(obj), meta["name"], meta.get("namespace", ""))
            problems[title(obj)] = unready({"kind": obj["kind"], **current})
        if not any(problems.values()):
            return
        if client.clock.monotonic() > until:
            lines = "".join(f"\n  {name}: {problem}" for name, problem in problems.items() if problem)
            todo = f"kubectl describe pods -n {NAMESPACE} -l app.kubernetes.io/name=podwire says why"
            raise ClusterError(f"not ready within {limit_s:g} s; {todo}{lines}")
        await client.clock.sleep(_PAUSE_S)
