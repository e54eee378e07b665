"""A cluster as the e2e tests use it: kubectl as a process, and manifests to apply."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e import warm_commands
from tests.e2e.connection import Connection, connection_of
from tests.e2e.objects import reader_of

LONGEST_PAUSE_S = 1.0
"""Seconds between two checks of :func:`eventually` at most."""
NOTICED_S = 20.0
"""Seconds; less than the 30 s after which agents compare their whole state with the kernel in any case."""


class Lines:
    """The output of a running process; each read has a time limit."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._rest = b""

    def next(self, within: float = 60) -> str:
        """The next line without its newline, empty at the end of the output; fails the test when none comes in time."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + within
        while b"\n" not in self._rest:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not select.select([self.process.stdout], [], [], remaining)[0]:
                pytest.fail(f"no further line within {within} s; so far {self._rest!r}")
            piece = os.read(self.process.stdout.fileno(), 65536)
            if not piece:
                last, self._rest = self._rest, b""
                return last.decode()
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def until(self, expected: Callable[[str], object], within: float = 60) -> list[str]:
        """The lines up to the first one that matches, with that line."""
        deadline = time.monotonic() + within
        observed: list[str] = []
        while True:
            line = self.next(max(0.1, deadline - time.monotonic()))
            observed.append(line)
            if expected(line):
                return observed
            if not line and self.process.poll() is not None:
                pytest.fail(f"the output ended: {observed}")


@dataclass(frozen=True)
class Cluster:
    """A running cluster; every method runs a process and waits for it."""

    name: str
    kubeconfig: str

    def environment(self, **more: str) -> dict[str, str]:
        return {
            **os.environ,
            "KUBECONFIG": self.kubeconfig,
            "TERM": "dumb",
            "GOGC": "800",  # a process of kubectl is short: collecting its garbage is a fifth of its processor time
            "HOME": str(Path(self.kubeconfig).parent),
            **more,
        }

    def run(
        self, arguments: Sequence[str], *, stdin: str = "", timeout: float = 120, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        settings = self.environment(**environment)
        if arguments[0] == podwire()[0] and len(podwire()) == 1:
            return run_podwire(*arguments[1:], stdin=stdin, timeout=timeout, environment=settings)
        return subprocess.run(
            list(arguments),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=settings,
            check=False,
        )

    def kubectl(self, *arguments: str, stdin: str = "", timeout: float = 120, **environment: str) -> str:
        """The output of kubectl; fails the test when the exit status is not 0."""
        done = self.run(["kubectl", *arguments], stdin=stdin, timeout=timeout, **environment)
        assert done.returncode == 0, (
            f"kubectl {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done.stdout

    def refused(self, *arguments: str, stdin: str = "", timeout: float = 120) -> str:
        """The standard error of a kubectl that fails; fails the test when kubectl succeeds."""
        done = self.run(["kubectl", *arguments], stdin=stdin, timeout=timeout)
        assert done.returncode != 0, f"kubectl {' '.join(arguments)} succeeded: {done.stdout}"
        return done.stderr

    @contextmanager
    def stream(self, *arguments: str) -> Iterator["Lines"]:
        """The lines of a kubectl that keeps running; kubectl is ended after the ``with`` block."""
        process = subprocess.Popen(
            ["kubectl", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self.environment(),
        )
        try:
            yield Lines(process)
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    @property
    def api(self) -> Connection:
        """The connection of this process to the API, as the cluster's administrator."""
        return connection_of(self.kubeconfig, Path(self.kubeconfig).stat().st_mtime_ns)

    def get(self, *arguments: str) -> Any:
        """Objects as decoded JSON: the output of ``kubectl get`` with these arguments and ``-o json``."""
        return reader_of(self.api).get(arguments)

    def apply(self, text: str, *arguments: str) -> None:
        """Makes or changes objects as ``kubectl apply --server-side`` does; ``arguments`` are ``-n NAMESPACE``.

        Raises: AssertionError when the API refuses an object.
        """
        reader = reader_of(self.api)
        option, namespace = arguments or ("-n", "default")
        assert option == "-n", arguments
        in_json = text.startswith('{"')  # JSON is YAML, too, but is read much faster as what it is
        documents = [json.loads(text)] if in_json else filter(None, yaml.load_all(text, yaml.CSafeLoader))
        for body in (
            item for document in documents for item in (document["items"] if document["kind"] == "List" else [document])
        ):
            path = f"{reader.path_of(body, namespace)}/{body['metadata']['name']}"
            query = {"fieldManager": "tests", "force": "true", "fieldValidation": "Strict"}
            self.api.do("PATCH", path, body, patch="apply", **query)

    def delete_all(self, kind: str, namespace: str = "default") -> None:
        """Deletes all objects of a kind in a namespace."""
        for item in self.get(kind, "-n", namespace)["items"]:
            path = reader_of(self.api).path_of(item, namespace)
            self.api.do("DELETE", f"{path}/{item['metadata']['name']}")

    def ready(self, *pods: str, namespace: str = "default") -> None:
        """Waits until these pods are ready."""
        for pod in pods:
            eventually(lambda pod=pod: is_ready(self.get("pod", pod, "-n", namespace)), within=90)

    def rolled_out(self, name: str, namespace: str = "default") -> None:
        """Waits until all pods of a Deployment are those of its latest template, and available."""
        eventually(lambda: is_rolled_out(self.get("deployment", name, "-n", namespace)), within=90)

    def kubectl_apply(self, text: str, *arguments: str) -> str:
        """The output of ``kubectl apply``."""
        return self.kubectl("apply", "-f", "-", *arguments, stdin=text)


def is_ready(pod: Any) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))


def is_rolled_out(deployment: Any) -> bool:
    """As ``kubectl rollout status`` decides."""
    expected, status = deployment["spec"]["replicas"], deployment["status"]
    counts = {status.get(name, 0) for name in ("replicas", "updatedReplicas", "availableReplicas")}
    return status.get("observedGeneration", 0) >= deployment["metadata"]["generation"] and counts == {expected}


def eventually(check: Callable[..., Any], *, within: float = 60, every: float = 0.1) -> Any:
    """The first true value that ``check`` returns; fails the test with its last value.

    The limit is for a machine that has much else to do. What is put right in half a minute anyway, because everything
    is looked at again then, needs a shorter one to show that it was noticed: :data:`NOTICED_S`. The pause between two
    checks is ``every`` seconds, or three times as long as the last check took: what is waited for needs the processor,
    too.
    """
    deadline = time.monotonic() + within
    while True:
        began = time.monotonic()
        result = check()
        if result:
            return result
        now = time.monotonic()
        if now > deadline:
            pytest.fail(f"not within {within} s: {check.__qualname__} gave {result!r}")
        time.sleep(max(every, min(3 * (now - began), LONGEST_PAUSE_S)))


def podwire() -> list[str]:
    """The command line of podwire in this environment."""
    beside = Path(sys.executable).with_name("podwire")
    return [str(beside)] if beside.exists() else [sys.executable, "-m", "podwire"]


def run_podwire(
    *arguments: str, stdin: str = "", timeout: float = 180, environment: Mapping[str, str] = os.environ
) -> subprocess.CompletedProcess[str]:
    """Runs a podwire command; returns the result, whatever the exit status is."""
    return warm_commands.run(podwire()[0], arguments, stdin=stdin, timeout=timeout, environment=environment)


def deployment(name: str, *, replicas: int = 1, image: str = "nginx:1.27", port: int = 80, **labels: str) -> str:
    """The manifest of a Deployment of one container."""
    more = "".join(f", {key}: {value}" for key, value in labels.items())
    return f"""
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}, labels: {{app: {name}{more}}}}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: main
          image: {image}
          ports: [{{containerPort: {port}}}]
          readinessProbe: {{httpGet: {{path: /, port: {port}}}, periodSeconds: 1}}
"""


def shell_pod(name: str, script: str, *, restart: str = "Never") -> str:
    """The manifest of a Pod that runs a shell script."""
    return f"""
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  restartPolicy: {restart}
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: busybox:1.36
      command: [sh, -c, {json.dumps(script)}]
"""
