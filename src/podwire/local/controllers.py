"""All controllers of a local cluster by name, including workload controllers and scheduler, in one process.

``run(client, config)`` with ``LocalControllerConfig`` runs the controllers of any cluster, the workload
controllers and the scheduler on shared informers: one copy of each object, one watch per resource.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from podwire.controllers import registry as cluster_controllers
from podwire.controllers.registry import ControllerConfig
from podwire.embedded.workloads.autoscaling.plan import AutoscalerSettings
from podwire.embedded.workloads.nodelifecycle import NodeTimes
from podwire.errors import ConfigError
from podwire.kube.client import Client
from podwire.kube.config import load
from podwire.model.document import not_yaml, wrong
from podwire.observe import log
from podwire.runtime.clock import SystemClock
from podwire.runtime.foreground import run_until_signal
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
        "horizontalpodautoscaler": "podwire.embedded.workloads.autoscaling.controller:AutoscalerController",
        "nodelifecycle": "podwire.embedded.workloads.nodelifecycle:NodeLifecycleController",
        "persistentvolume": "podwire.embedded.storage.binder:VolumeBinder",
        "storageprotection": "podwire.embedded.storage.protection:StorageProtection",
        "certificate": "podwire.embedded.certificates.controller:CertificateController",
        "serviceaccount": "podwire.embedded.workloads.serviceaccount:ServiceAccountController",
    },
)

ALL_CONTROLLERS = tuple(CONTROLLERS)
"""What a local cluster runs: it has no controllers but these."""


class LocalControllerConfig(ControllerConfig, frozen=True, kw_only=True):
    """The configuration of a controller process; without ``parts`` it runs what every cluster needs besides its own."""

    node_times: NodeTimes = NodeTimes()
    autoscaler: AutoscalerSettings = AutoscalerSettings()
    ca_key_file: str = ""
    """Key of the cluster's authority, with which certificate requests are signed; empty: none is signed."""
    volume_folder: str = "/var/lib/podwire/volumes"
    """The folder of the volumes of the class ``standard``."""

    def arguments(self, name: str) -> tuple[object, ...]:
        """The arguments of the controller with this name, besides the environment.

        Raises: ConfigError for a wrong network.
        """
        local: dict[str, tuple[object, ...]] = {
            "serviceaccount": (self.ca_file,),
            "nodelifecycle": (self.node_times,),
            "horizontalpodautoscaler": (self.autoscaler,),
            "certificate": (self.ca_file, self.ca_key_file),
            "persistentvolume": (self.volume_folder,),
        }
        return local.get(name) or super().arguments(name)


class ControllerFile(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The controller's file: kubeconfigs of controllers and scheduler, and the controllers to run."""

    controller: LocalControllerConfig
    kubeconfig: str = ""
    """The kubeconfig of the controllers; empty: ``$KUBECONFIG`` or the pod's own service account."""
    scheduler_kubeconfig: str = ""
    """The kubeconfig of the scheduler; empty: that of the controllers."""
    log_level: log.Level = "info"


async def run(
    client: Client, config: ControllerConfig | None = None, identities: Mapping[str, Client] | None = None
) -> None:
    """Runs the configured controllers until cancelled; a controller in ``identities`` writes with the client there.

    Raises: ConfigError, before any controller is started.
    """
    config = config or LocalControllerConfig(parts=ALL_CONTROLLERS)
    await cluster_controllers.run(client, config, CONTROLLERS, identities)


def run_file(path: str, kubeconfig: str | None) -> None:
    """Runs the controllers of a file; ``kubeconfig`` replaces the kubeconfigs in the file.

    Raises: ConfigError.
    """
    file = read_file(path)
    log.configure(file.log_level)

    async def body() -> None:
        clock = SystemClock()
        client = Client(load(kubeconfig or file.kubeconfig, os.environ), clock, manager="podwire-controller")
        chosen = kubeconfig or file.scheduler_kubeconfig or file.kubeconfig
        scheduler = Client(load(chosen, os.environ), clock, manager="podwire-scheduler")
        await run(client, file.controller, {"scheduler": scheduler})

    run_until_signal(body)


def read_file(path: str) -> ControllerFile:
    """The controller's file.

    Raises: ConfigError naming the field.
    """
    try:
        return msgspec.yaml.decode(Path(path).read_bytes(), type=ControllerFile)
    except OSError as failure:
        raise ConfigError(path, "", f"cannot be read: {failure.strerror}") from failure
    except msgspec.ValidationError as failure:
        raise wrong(failure, ControllerFile, path) from failure
    except msgspec.DecodeError as failure:
        raise not_yaml(failure, path) from failure
