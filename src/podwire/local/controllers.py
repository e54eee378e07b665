"""Everything that decides in a local cluster, by name, in one process.

``run(client, config)`` with ``LocalControllerConfig`` runs the controllers of any cluster, the workload
controllers and the scheduler on shared informers: one copy of each object, one watch per resource.
"""

from collections.abc import Mapping
from typing import Any

from podwire.controllers import registry as cluster_controllers
from podwire.controllers.registry import ControllerConfig
from podwire.embedded.workloads.nodelifecycle import NodeTimes
from podwire.kube.client import Client
from podwire.runtime.registry import Registry

CONTROLLERS: Registry[Any] = Registry(
    "controller",
    "parts",
    {
        **cluster_controllers.CONTROLLERS,
        "scheduler": "podwire.embedded.scheduler.scheduler:Scheduler",
        "deployment": "podwire.embedded.workloads.deployment:DeploymentController",
        "replicaset": "podwire.embedded.workloads.replicaset:ReplicaSetController",
        "replicationcontroller": "podwire.embedded.workloads.replicaset:ReplicationControllerController",
        "daemonset": "podwire.embedded.workloads.daemonset:DaemonSetController",
        "statefulset": "podwire.embedded.workloads.statefulset:StatefulSetController",
        "job": "podwire.embedded.workloads.job:JobController",
        "cronjob": "podwire.embedded.workloads.cronjob:CronJobController",
        "poddisruptionbudget": "podwire.embedded.workloads.disruption:DisruptionController",
        "nodelifecycle": "podwire.embedded.workloads.nodelifecycle:NodeLifecycleController",
        "persistentvolume": "podwire.embedded.storage.binder:VolumeBinder",
        "storageprotection": "podwire.embedded.storage.protection:StorageProtection",
        "certificate": "podwire.embedded.certificates.controller:CertificateController",
        "serviceaccount": "podwire.embedded.workloads.serviceaccount:ServiceAccountController",
    },
)


class LocalControllerConfig(ControllerConfig, frozen=True, kw_only=True):
    """A controller process that runs every part unless told otherwise."""

    parts: tuple[str, ...] = tuple(CONTROLLERS)
    node_times: NodeTimes = NodeTimes()
    ca_key_file: str = ""
    """Key of the cluster's authority, with which certificate requests are signed; empty: none is signed."""
    volume_folder: str = "/var/lib/podwire/volumes"
    """The folder of the volumes of the class ``standard``."""

    def arguments(self, name: str) -> tuple[object, ...]:
        """What the controller of this name takes besides the environment.

        Raises: ConfigError for a wrong network.
        """
        local: dict[str, tuple[object, ...]] = {
            "serviceaccount": (self.ca_file,),
            "nodelifecycle": (self.node_times,),
            "certificate": (self.ca_file, self.ca_key_file),
            "persistentvolume": (self.volume_folder,),
        }
        return local.get(name) or super().arguments(name)


async def run(
    client: Client, config: ControllerConfig | None = None, identities: Mapping[str, Client] | None = None
) -> None:
    """Runs the configured parts until cancelled; a part in ``identities`` writes by the client there.

    Raises: ConfigError before anything is started.
    """
    await cluster_controllers.run(client, config or LocalControllerConfig(), CONTROLLERS, identities)
