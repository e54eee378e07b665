"""Refuses a routing backend that this machine cannot run, before ``podwire up`` changes anything.

An agent that lacks what its backend needs uses ``hostgw`` and reports that, because the other nodes of a real cluster
may have it. The nodes of a local cluster are this machine, and the backend was asked for by name: here the substitute
would only hide that the backend does not run. The kernel is asked by making a device of the kind in a namespace that
nobody else sees (:mod:`podwire.kernel.features`), which takes 1 to 30 ms.
"""

from collections.abc import Callable

from podwire.errors import ConfigError
from podwire.local.config import ClusterConfig
from podwire.routing.registry import BACKENDS


def check_backend(config: ClusterConfig, known: ClusterConfig | None, source: str, lacks: Callable[[str], str]) -> None:
    """Checks the backend of a new cluster, or the one to which a running cluster is to change.

    ``lacks`` returns a missing feature of the machine as text.

    Raises: ConfigError with what is missing, and the backends that this machine can run.
    """
    name = config.routing.backend
    if config.network == "none" or (known is not None and known.routing.backend == name):
        return
    if lack := lack_of(name, lacks):
        usable = ", ".join(other for other in BACKENDS if not lack_of(other, lacks))
        raise ConfigError(source, "routing.backend", f"{name}: {lack}; this machine can run {usable}")


def lack_of(name: str, lacks: Callable[[str], str]) -> str:
    """What a backend needs and the machine does not have; empty: it can run."""
    feature = BACKENDS.load(name).feature
    return lacks(feature) if feature else ""
