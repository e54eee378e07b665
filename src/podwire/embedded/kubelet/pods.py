"""The workers of a node's pods, also after a restart of the kubelet.

A worker belongs to a uid, not to a name: while a StatefulSet's pod is being replaced, two workers have pods with one
name. When the kubelet starts, it compares the records on disk with the API's list: pods in both are adopted, pods that
are only on disk are removed.
"""

import asyncio

from podwire.embedded.kubelet.context import NodeContext
from podwire.embedded.kubelet.orders import PodRecord
from podwire.embedded.kubelet.podrecord import load_record
from podwire.embedded.kubelet.podstate import PodState
from podwire.embedded.kubelet.sandbox import kill_group
from podwire.embedded.kubelet.worker import PodWorker
from podwire.errors import CniError
from podwire.kube.informer import Informer
from podwire.model.meta import ObjectMeta
from podwire.model.pod import Pod
from podwire.observe.log import Log


class PodWorkers:
    """The workers of one node."""

    def __init__(self, informer: Informer[Pod], node: NodeContext) -> None:
        self._informer = informer
        self._node = node
        self._log = Log("kubelet.pods")
        self._records: dict[str, PodRecord] = {}
        self.workers: dict[str, PodWorker] = {}

    @property
    def states(self) -> list[PodState]:
        """The state of every pod on the node, including pods that are being removed."""
        return [worker.state for worker in self.workers.values()]

    def by_name(self, namespace: str, name: str) -> PodState | None:
        """The state of the pod that has this name in the API; None when there is no such pod on the node."""
        for state in self.states:
            meta = state.pod.metadata
            if (meta.namespace, meta.name) == (namespace, name) and not state.gone:
                return state
        return None

    async def run(self) -> None:
        """Adopts the pods of an earlier kubelet, then follows the API until cancelled."""
        await self._informer.synced.wait()
        self._records = {record.uid: record for record in self._read_records()}
        uids = {pod.metadata.uid for pod in self._informer.objects.values()}
        self._informer.subscribe(self._changed)
        for uid, record in self._records.items():
            if uid not in uids:
                pod = f"{record.namespace}/{record.name}"
                self._log.info("removing a pod that was deleted while the kubelet was stopped", pod=pod)
                self._begin(_deleted_pod(record), gone=True)
        self._clear_groups()
        await self._collect()
        await asyncio.get_running_loop().create_future()

    def _read_records(self) -> list[PodRecord]:
        directory = self._node.host.state / "pods"
        records = [load_record(path) for path in sorted(directory.iterdir())] if directory.is_dir() else []
        return [record for record in records if record is not None]

    def _clear_groups(self) -> None:
        group = self._node.host.group
        for path in group.unified.iterdir() if group is not None else ():
            if group is not None and path.is_dir() and path.name not in self.workers:
                kill_group(group.inside(path.name))

    async def _collect(self) -> None:
        valid = [state.sandbox.record.sandbox for state in self.states if state.sandbox.record.sandbox]
        try:
            await self._node.host.network.collect(valid)
        except CniError as failure:
            self._log.info("the CNI command GC failed; addresses of lost pods may stay in use", problem=failure)

    def _changed(self, key: str, old: Pod | None, new: Pod | None) -> None:
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            worker = self.workers.get(old.metadata.uid)
            if worker is not None:
                worker.update(None)
        if new is None:
            return
        worker = self.workers.get(new.metadata.uid)
        if worker is not None:
            worker.update(new)
        else:
            self._begin(new)

    def _begin(self, pod: Pod, *, gone: bool = False) -> None:
        uid = pod.metadata.uid
        worker = self.workers[uid] = PodWorker(pod, self._node, self._records.pop(uid, None))
        worker.state.gone = gone
        task = self._node.tasks.start(f"pod {pod.metadata.namespace}/{pod.metadata.name}", worker.run())
        task.add_done_callback(lambda _: self._ended(uid))

    def _ended(self, uid: str) -> None:
        self.workers.pop(uid, None)
        self._node.objects.release(uid)

    def objects_changed(self, namespace: str) -> None:
        """Updates the volumes of a namespace's pods, because a ConfigMap or Secret of the namespace has changed."""
        for worker in self.workers.values():
            if worker.state.pod.metadata.namespace == namespace:
                worker.refresh_volumes()


def _deleted_pod(record: PodRecord) -> Pod:
    return Pod(metadata=ObjectMeta(uid=record.uid, namespace=record.namespace, name=record.name))
