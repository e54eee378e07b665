"""The pods that have a device on this node, and their objects with the addresses that this node assigned to them."""

import msgspec

from podwire.cluster.names import MIRROR_POD
from podwire.dataplane.follower import Source
from podwire.model.meta import ObjectMeta
from podwire.model.pod import Pod, PodIP, PodSpec


class AttachedPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's device on this node."""

    pod: str
    """``namespace/name``; empty for a container that is not a pod, which has no labels that a policy selects."""
    device: str
    addresses: tuple[str, ...]
    uid: str = ""
    """The pod's uid; empty when the runtime does not give it."""
    port: str = ""
    """The pod's own port, when ``device`` is a bridge; otherwise empty."""

    @property
    def link(self) -> str:
        """The device that only this pod uses."""
        return self.port or self.device


class AttachedPods:
    """The attached pods of the node ``node``; ``pods`` has the pods of the API."""

    def __init__(self, pods: Source[Pod], node: str) -> None:
        self._pods = pods
        self._node = node
        self._containers: dict[str, Pod] = {}
        """Pod objects for containers that are not pods, by ``/device``."""
        self.by_link: dict[str, AttachedPod] = {}
        """The attached pods by the names of their own devices."""

    def add(self, attached_pod: AttachedPod) -> str:
        """Adds a pod; returns its key, which is ``/device`` for a container that is not a pod."""
        if not attached_pod.pod:
            attached_pod = msgspec.structs.replace(attached_pod, pod=f"/{attached_pod.link}")
            meta = ObjectMeta(name=attached_pod.link)
            self._containers[attached_pod.pod] = Pod(metadata=meta, spec=PodSpec(node_name=self._node))
        self.by_link[attached_pod.link] = attached_pod
        return attached_pod.pod

    def remove(self, link: str) -> AttachedPod | None:
        """Removes the pod with a device; returns the pod, or None when there is none."""
        attached_pod = self.by_link.pop(link, None)
        if attached_pod is not None:
            self._containers.pop(attached_pod.pod, None)
        return attached_pod

    def is_known(self, pod: str, uid: str) -> bool:
        """Whether the object of a pod is known; with ``uid``, an object with this uid."""
        pod_object = self._object(pod)
        return pod_object is not None and _has_uid(pod_object, uid)

    def devices(self) -> dict[str, str]:
        """The device of each attached pod whose object is known; a pod without an object is isolated."""
        return {
            attached_pod.pod: attached_pod.device
            for attached_pod in self.by_link.values()
            if self.is_known(attached_pod.pod, attached_pod.uid)
        }

    def keys(self) -> tuple[str, ...]:
        """The keys of all pods of the cluster, and of the containers on this node that are not pods."""
        return (*self._pods.objects, *self._containers)

    def objects(self, keys: list[str]) -> dict[str, Pod | None]:
        """The pods with these keys; attached pods have the addresses that this node assigned to them."""
        attached_by_key = {attached_pod.pod: attached_pod for attached_pod in self.by_link.values()}
        objects: dict[str, Pod | None] = {}
        for key in keys:
            pod, attached_pod = self._object(key), attached_by_key.get(key)
            if pod is not None and attached_pod is not None and _has_uid(pod, attached_pod.uid):
                pod = _with_addresses(pod, attached_pod.addresses)
            objects[key] = pod
        return objects

    def _object(self, key: str) -> Pod | None:
        return self._pods.objects.get(key) or self._containers.get(key)


def _has_uid(pod: Pod, uid: str) -> bool:
    """Whether a uid is that of a pod object, or empty.

    For a static pod the runtime gives the uid of the pod's file, which the mirror object of kubelet has as annotation.
    """
    return uid in ("", pod.metadata.uid, pod.metadata.annotations.get(MIRROR_POD))


def _with_addresses(pod: Pod, addresses: tuple[str, ...]) -> Pod:
    """A pod with its addresses on this node; its status may have none yet, or those from before a restart."""
    if pod.addresses == addresses:
        return pod
    ips = tuple(PodIP(ip=address) for address in addresses)
    return msgspec.structs.replace(
        pod, status=msgspec.structs.replace(pod.status, pod_ip=addresses[0] if addresses else "", pod_ips=ips)
    )
