"""Everything that decides in a local cluster, by name, in one process.

``run(client, config)`` with ``LocalControllerConfig`` runs the controllers of any cluster, the workload
controllers and the scheduler on shared informers: one copy of each object, one watch per resource.
"""

from importlib import import_module

from podwire.controllers import parts
from podwire.controllers.parts import ControllerConfig
from podwire.kube.client import Client

registry = {
    **parts.registry,
    "scheduler": "podwire.local.scheduler.scheduler:Scheduler",
    "deployment": "podwire.local.workloads.deployment:DeploymentController",
    "replicaset": "podwire.local.workloads.replicaset:ReplicaSetController",
    "replicationcontroller": "podwire.local.workloads.replicaset:ReplicationControllerController",
    "daemonset": "podwire.local.workloads.daemonset:DaemonSetController",
    "statefulset": "podwire.local.workloads.statefulset:StatefulSetController",
    "job": "podwire.local.workloads.job:JobController",
    "cronjob": "podwire.local.workloads.cronjob:CronJobController",
    "poddisruptionbudget": "podwire.local.workloads.disruption:DisruptionController",
    "nodelifecycle": "podwire.local.workloads.nodelifecycle:NodeLifecycleController",
    "serviceaccount": "podwire.local.workloads.serviceaccount:ServiceAccountController",
}


class LocalControllerConfig(ControllerConfig, frozen=True, kw_only=True):
    """A controller process that runs every part unless told otherwise."""

    parts: tuple[str, ...] = tuple(registry)


async def run(client: Client, config: ControllerConfig | None = None) -> None:
    """Runs the configured parts until cancelled.

    Raises: ConfigError before anything is started.
    """
    await parts.run(client, config or LocalControllerConfig(), registry)


def preload() -> None:
    """Imports every part, so that processes forked from this one start without (60 ms of CPU each)."""
    for target in registry.values():
        import_module(target.partition(":")[0])
