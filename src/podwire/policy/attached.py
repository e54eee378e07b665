"""The pods that have a device on this node, and what their objects say with the addresses that this node gave them."""

import msgspec

from podwire.dataplane.follower import Source
from podwire.model.meta import ObjectMeta
from podwire.model.pod import Pod, PodIP, PodSpec


class AttachedPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's device on this node."""

    pod: str
    """``namespace/name``; empty for a container that is no pod, which no policy selects by its labels."""
    device: str
    addresses: tuple[str, ...]
    uid: str = ""
    """Of the pod; empty where the runtime does not tell."""
    port: str = ""
    """The pod's port, where ``device`` is a bridge that it shares with others."""

    @property
    def link(self) -> str:
        """The device that is the pod's alone."""
        return self.port or self.device


class AttachedPods:
    """The attached pods of node ``node``; ``pods`` has the pods of the API."""

    def __init__(self, pods: Source[Pod], node: str) -> None:
        self._pods = pods
        self._node = node
        self._strangers: dict[str, Pod] = {}
        """Pods made up for containers that are no pods, by ``/device``."""
        self.by_link: dict[str, AttachedPod] = {}
        """The attached pods by the names of their own devices."""

    def add(self, one: AttachedPod) -> str:
        """Adds a pod; returns its key, which is ``/device`` for a container that is no pod."""
        if not one.pod:
            one = msgspec.structs.replace(one, pod=f"/{one.link}")
            meta = ObjectMeta(name=one.link)
            self._strangers[one.pod] = Pod(metadata=meta, spec=PodSpec(node_name=self._node))
        self.by_link[one.link] = one
        return one.pod

    def remove(self, link: str) -> AttachedPod | None:
        """Removes the pod with this device; returns the pod, None when there is none."""
        one = self.by_link.pop(link, None)
        if one is not None:
            self._strangers.pop(one.pod, None)
        return one

    def is_known(self, pod: str, uid: str) -> bool:
        """Whether the object of a pod is known; with ``uid``, the object of this very pod."""
        found = self._object(pod)
        return found is not None and uid in ("", found.metadata.uid)

    def devices(self) -> dict[str, str]:
        """The device of each attached pod whose object is known; a pod without is cut off."""
        return {one.pod: one.device for one in self.by_link.values() if self.is_known(one.pod, one.uid)}

    def keys(self) -> tuple[str, ...]:
        """The keys of all pods of the cluster, and of the containers on this node that are no pods."""
        return (*self._pods.objects, *self._strangers)

    def objects(self, keys: list[str]) -> dict[str, Pod | None]:
        """The pods with these keys; the attached ones have the addresses that this node gave them."""
        attached = {one.pod: one for one in self.by_link.values()}
        found: dict[str, Pod | None] = {}
        for key in keys:
            pod, one = self._object(key), attached.get(key)
            if pod is not None and one is not None and one.uid in ("", pod.metadata.uid):
                pod = _with_addresses(pod, one.addresses)
            found[key] = pod
        return found

    def _object(self, key: str) -> Pod | None:
        return self._pods.objects.get(key) or self._strangers.get(key)


def _with_addresses(pod: Pod, addresses: tuple[str, ...]) -> Pod:
    """A pod with the addresses that it has here; its status tells them later, or those of before a restart."""
    if pod.addresses == addresses:
        return pod
    ips = tuple(PodIP(ip=address) for address in addresses)
    return msgspec.structs.replace(
        pod, status=msgspec.structs.replace(pod.status, pod_ip=addresses[0] if addresses else "", pod_ips=ips)
    )
