"""The inputs of a pod's containers: volumes with current content, files in /etc, Service variables."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from podwire.embedded.kubelet.claims import bound_volume, is_claim, is_read_only
from podwire.embedded.kubelet.containerorder import ContainerInputs
from podwire.embedded.kubelet.environment import service_variables
from podwire.embedded.kubelet.objects import PodTokens
from podwire.embedded.kubelet.podstate import PodState
from podwire.embedded.kubelet.resolver import kernel_hostname, pod_hostname, pod_hosts, pod_resolver
from podwire.embedded.kubelet.volumes import Content, VolumeRoots, compile_files, object_kinds, prepare, write_files
from podwire.errors import ApiError, ApiUnreachable, ConfigError, ProtocolError
from podwire.observe.log import Log
from podwire.runtime.backoff import Backoff


class InputProvider:
    """The inputs of one pod; when ``dirty`` is set, the content of volumes is written again at the next call."""

    def __init__(self, state: PodState) -> None:
        self._state = state
        self._log = Log("kubelet.pod")
        self._backoff = Backoff(0.5, 30.0)
        self._paths: dict[str, Path] = {}
        self._tokens = PodTokens(state.node.client, state.node.clock)
        self._renew_at = 0.0
        self.dirty = True

    async def current(self) -> ContainerInputs:
        """The inputs of a container that starts now.

        Raises: ConfigError naming the object or key that is missing; ApiError, ApiUnreachable, TimeoutError, OSError.
        """
        await self._refresh()
        state = self._state
        node, pod, ips = state.node, state.pod, state.sandbox.record.ips
        links = pod.spec.enable_service_links is not False
        variables = service_variables(node.services.objects.values(), pod.metadata.namespace, links=links)
        hostname = pod_hostname(pod, node.host.node)
        config = node.config
        kernel_name = kernel_hostname(pod, node.host.node, config.cluster_domain)
        hosts = pod_hosts(pod, ips, hostname, config.cluster_domain, node.node_hosts)
        resolver = pod_resolver(pod, node.node_resolver, config.cluster_dns, config.cluster_domain)
        files = {"/etc/hostname": f"{kernel_name}\n", "/etc/hosts": hosts, "/etc/resolv.conf": str(resolver)}
        return ContainerInputs(
            state.fields(), variables, node.objects, self._paths, files, config.images, state.sandbox.directory,
            frozenset(str(volume["name"]) for volume in pod.spec.volumes if is_read_only(volume)),
        )  # fmt: skip

    def _report_unfetched_image(self, volume: Mapping[str, Any]) -> None:
        reference = (volume.get("image") or {}).get("reference", "")
        text = f"Volume {volume['name']} is an empty folder: image {reference} is not fetched on a local cluster"
        self._state.event("Warning", "ImageVolumeEmpty", text)

    async def keep_current(self) -> None:
        """Updates volumes while containers run; after a failure, wakes the worker later to try again."""
        state = self._state
        try:
            await self._refresh()
        except (ConfigError, ApiError, ApiUnreachable, ProtocolError, OSError, TimeoutError) as failure:
            self._log.warning("cannot update volumes; trying again", pod=state.pod.metadata.name, problem=failure)
            state.wakeup.wake_in(self._backoff.next_delay_s())
            return
        if self._renew_at:
            state.wakeup.wake_in(self._renew_at - state.now())

    async def _refresh(self) -> None:
        """Updates volumes when an object or a token may have changed.

        Raises: the same exceptions as :meth:`current`.
        """
        state = self._state
        if not self.dirty and not (self._renew_at and state.now() >= self._renew_at):
            return
        pod, node = state.pod, state.node
        volumes = pod.spec.volumes
        await node.objects.ready_for(pod)
        tokens, self._renew_at = await self._tokens.for_volumes(pod, volumes)
        directory = state.sandbox.directory
        memory = node.host.run / "memory" / pod.metadata.uid
        roots = VolumeRoots(directory / "volumes", memory, node.config.host_directories)
        content = Content(state.fields(), node.objects, tokens)
        stamp = f"{node.clock.now():%Y_%m_%d_%H_%M_%S.%f}"
        for volume in volumes:
            name = str(volume["name"])
            if object_kinds(volume):
                path = self._paths[name] = memory / name
                write_files(path, compile_files(volume, content), stamp)
            elif name not in self._paths:
                source = await bound_volume(node.client, pod, volume) if is_claim(volume) else volume
                self._paths[name] = prepare(source, roots)
                if "image" in volume:
                    self._report_unfetched_image(volume)
        self.dirty = False
