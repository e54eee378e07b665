"""What a pod's containers are given: prepared volumes with current content, files of /etc, Service variables."""

from pathlib import Path
from typing import TYPE_CHECKING

from podwire.embedded.kubelet.containers import Supplies
from podwire.embedded.kubelet.environment import service_variables
from podwire.embedded.kubelet.objects import PodTokens
from podwire.embedded.kubelet.resolver import pod_hostname, pod_hosts, pod_resolver
from podwire.embedded.kubelet.volumes import Content, Places, compile_files, object_kinds, prepare, write_files

if TYPE_CHECKING:
    from podwire.embedded.kubelet.worker import PodWorker


class Provisions:
    """The provisions of one pod; ``dirty`` asks for the content of volumes to be made anew."""

    def __init__(self, worker: "PodWorker") -> None:
        self._worker = worker
        self._paths: dict[str, Path] = {}
        self._tokens = PodTokens(worker.around.client, worker.around.clock)
        self._renew_at = 0.0
        self.dirty = True

    async def supply(self) -> Supplies:
        """Everything that a container needs now.

        Raises: ConfigError naming what is missing; ApiError, ApiUnreachable, TimeoutError, OSError.
        """
        await self.refresh()
        worker = self._worker
        around, pod, ips = worker.around, worker.pod, worker.sandbox.record.ips
        links = pod.spec.enable_service_links is not False
        variables = service_variables(around.services.objects.values(), pod.metadata.namespace, links=links)
        hostname = pod_hostname(pod, around.ground.node)
        config = around.config
        hosts = pod_hosts(pod, ips, hostname, config.cluster_domain, around.node_hosts)
        resolver = pod_resolver(pod, around.node_resolver, config.cluster_dns, config.cluster_domain)
        files = {"/etc/hostname": f"{hostname}\n", "/etc/hosts": hosts, "/etc/resolv.conf": str(resolver)}
        return Supplies(
            worker.facts(), variables, around.objects, self._paths, files, config.images, worker.sandbox.directory
        )

    async def refresh(self) -> float:
        """Brings volumes up to date where something may have changed; when a token is due (monotonic), or 0.

        Raises: as :meth:`supply`.
        """
        worker = self._worker
        if not self.dirty and not (self._renew_at and worker.now() >= self._renew_at):
            return self._renew_at
        pod, around = worker.pod, worker.around
        volumes = pod.spec.volumes
        await around.objects.ready_for(pod)
        tokens, self._renew_at = await self._tokens.for_volumes(pod, volumes)
        directory = worker.sandbox.directory
        memory = around.ground.run / "memory" / pod.metadata.uid
        places = Places(directory / "volumes", memory, around.ground.state / "claims")
        content = Content(worker.facts(), around.objects, tokens)
        stamp = f"{around.clock.now():%Y_%m_%d_%H_%M_%S.%f}"
        for volume in volumes:
            name = str(volume["name"])
            if object_kinds(volume):
                path = self._paths[name] = memory / name
                write_files(path, compile_files(volume, content), stamp)
            elif name not in self._paths:
                self._paths[name] = prepare(volume, pod.metadata.namespace, places)
        self.dirty = False
        return self._renew_at
