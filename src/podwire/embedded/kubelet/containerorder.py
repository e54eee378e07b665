"""Compiles a container of a pod into the order for its shim: program, environment, files, mounts."""

import os
import secrets
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from podwire.embedded.images.table import DEFAULT_PATH, ContainerRequest, ImageRule, Program, choose, find_rule
from podwire.embedded.kubelet.environment import ConfigLookup, PodFields, compile_environment, expand, has_foreign_names
from podwire.embedded.kubelet.lifecycle import ContainerState, is_listed
from podwire.embedded.kubelet.orders import ContainerOrder, Mount
from podwire.embedded.kubelet.privileges import check_user, compile_privileges, compile_user, security_context
from podwire.embedded.kubelet.volumes import sub_path
from podwire.embedded.standin.answers import PodIdentity, StandinOrder, StandinPort
from podwire.errors import ConfigError
from podwire.model.pod import Container, Pod, Probe

ENTRIES = ("dns", "gateway", "gateway-engine", "standin")


class ContainerInputs(msgspec.Struct, frozen=True):
    """The inputs of a container besides its own specification.

    ``volumes`` are the paths of prepared volumes by name; ``files`` are the texts of the container's files in /etc.
    """

    fields: PodFields
    services: Mapping[str, str]
    objects: Any
    volumes: Mapping[str, Path]
    files: Mapping[str, str]
    rules: tuple[ImageRule, ...]
    directory: Path
    read_only: frozenset[str] = frozenset()
    """The names of volumes that no container may write."""


def container_request(
    container: Container, pod: Pod, argv: tuple[tuple[str, ...], tuple[str, ...]]
) -> ContainerRequest:
    """The facts for the image table; ``argv`` is the expanded command and the expanded arguments."""
    probes: Iterable[Probe | None] = (container.startup_probe, container.readiness_probe, container.liveness_probe)
    numbers: list[int] = []
    for probe in probes:
        if probe is not None:
            action = probe.http_get or probe.tcp_socket or probe.grpc
            if action is not None and isinstance(action.port, int):
                numbers.append(action.port)
    is_init = is_listed(container, pod.spec.init_containers) and container.restart_policy != "Always"
    once = pod.spec.restart_policy != "Always" and container.restart_policy != "Always"
    may_end = once or is_listed(container, pod.spec.ephemeral_containers)
    return ContainerRequest(
        image=container.image, command=argv[0], args=argv[1],
        ports=tuple((p.container_port, p.protocol) for p in container.ports), probed=tuple(numbers),
        init=is_init, may_end=may_end,
    )  # fmt: skip


def compile_order(state: ContainerState, attempt: int, inputs: ContainerInputs) -> ContainerOrder:
    """The order for one run of a container.

    Raises: ConfigError when the container's configuration names an object or volume that is missing; nothing is created
    then.
    """
    container, fields = state.spec, inputs.fields
    objects: ConfigLookup = inputs.objects
    own = compile_environment(container, fields, inputs.services, objects)
    env = {"PATH": DEFAULT_PATH, "HOSTNAME": inputs.files.get("/etc/hostname", "").strip(), "HOME": "/root"} | own
    if container.tty:
        env.setdefault("TERM", "xterm")
    argv = (tuple(expand(a, own) for a in container.command), tuple(expand(a, own) for a in container.args))
    program = choose(
        container_request(container, fields.pod, argv), inputs.rules, ENTRIES,
        lambda name: shutil.which(name, path=env["PATH"]) is not None,
    )  # fmt: skip
    if program.entry and program.entry != "standin":
        env["PATH"] = f"{Path(sys.executable).parent}:{DEFAULT_PATH}"  # commands of hooks find podwire
    rule = find_rule(container.image, inputs.rules)
    if rule is not None and program.argv and program.argv[0].startswith("/") and "PATH" not in own:
        env["PATH"] = f"{Path(program.argv[0]).parent}:{DEFAULT_PATH}"  # and those of the programs of a rule
    known = bool(program.argv) and rule is None
    check_user(container, fields.pod, image_runs_as_root=known)
    directory = inputs.directory / "containers"
    stem = f"{container.name}.{attempt}"
    return ContainerOrder(
        name=container.name, attempt=attempt, id=secrets.token_hex(32),
        record=str(directory / f"{stem}.json"), log=str(directory / f"{stem}.log"),
        argv=program.argv, executable=_executable(program.argv, own), entry=program.entry,
        payload=_payload(program, container, fields, argv, env),
        env={**program.env, **env}, cwd=container.working_dir or program.working_dir or "/",
        mounts=(*_mounts(container, inputs, own), _termination(container, directory / f"{stem}.message")),
        files=dict(inputs.files), user=None if program.entry else compile_user(container, fields.pod),
        privileges=compile_privileges(container, fields.pod),
        read_only_root=bool(security_context(container, fields.pod).get("readOnlyRootFilesystem")),
        stdin=container.stdin, stdin_once=container.stdin_once, tty=container.tty,
    )  # fmt: skip


def _executable(argv: tuple[str, ...], own: Mapping[str, str]) -> str:
    """bash in place of sh when the environment has names that dash, the sh of many machines, would drop."""
    if argv and argv[0] in ("sh", "/bin/sh") and has_foreign_names(own):
        return shutil.which("bash", path=DEFAULT_PATH) or ""
    return ""


def _payload(
    program: Program, container: Container, fields: PodFields, argv: tuple[tuple[str, ...], ...], env: Mapping[str, str]
) -> bytes:
    if program.entry == "standin":
        meta = fields.pod.metadata
        identity = PodIdentity(meta.name, meta.namespace, fields.node, container.name)
        ports = tuple(StandinPort(number, protocol) for number, protocol in program.ports)
        return msgspec.json.encode(StandinOrder(identity, container.image, ports, ends=program.ends))
    if program.entry:
        return msgspec.json.encode({"command": argv[0], "args": argv[1], "env": env})
    return b""


def _mounts(container: Container, inputs: ContainerInputs, variables: Mapping[str, str]) -> list[Mount]:
    mounts = []
    for volume_mount in container.volume_mounts:
        source = inputs.volumes.get(volume_mount.name)
        if source is None:
            raise ConfigError("volumeMounts", "name", f'volume "{volume_mount.name}" not found')
        inner = expand(volume_mount.sub_path_expr, variables) if volume_mount.sub_path_expr else volume_mount.sub_path
        target = volume_mount.mount_path if volume_mount.mount_path.startswith("/") else f"/{volume_mount.mount_path}"
        read_only = volume_mount.read_only or volume_mount.name in inputs.read_only
        mounts.append(Mount(str(sub_path(source, inner)), target.rstrip("/") or "/", read_only))
    return sorted(mounts, key=lambda mount: mount.target.count("/"))


def _termination(container: Container, message: Path) -> Mount:
    fd = os.open(message, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    os.fchmod(fd, 0o666)
    os.close(fd)
    return Mount(str(message.resolve()), container.termination_message_path or "/dev/termination-log")
