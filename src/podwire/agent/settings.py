"""Follows the cluster's settings and passes them to the parts of the agent."""

from podwire.agent.config import overlay
from podwire.agent.shared import Shared
from podwire.cluster.degraded import SETTINGS_REFUSED
from podwire.errors import ConfigError
from podwire.kube.informer import Informer
from podwire.kube.resources import CONFIGMAPS
from podwire.model.configmap import ConfigMap


def add(shared: Shared) -> None:
    """Adds the informer of the ConfigMap, if a part of the agent follows settings."""
    config = shared.config
    if not config.settings or not {"routing", "proxy", "policy"} & set(config.parts):
        return
    namespace, _, name = config.settings.partition("/")
    selector = f"metadata.name={name}"
    informer: Informer[ConfigMap] = Informer(
        shared.client, CONFIGMAPS, namespace=namespace, field_selector=selector, decode_as=ConfigMap
    )
    shared.events.follow_rejected(informer)
    informer.subscribe(SettingsFollower(shared).changed)
    shared.settings_known = informer.synced
    shared.tasks["settings"] = informer.run


class SettingsFollower:
    """Applies the ConfigMap over the agent's own file; while the ConfigMap is wrong, the last good settings stay."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._backend = shared.config.routing_settings.backend

    def changed(self, key: str, _old: ConfigMap | None, new: ConfigMap | None) -> None:
        """Passes on the settings of a changed ConfigMap, or reports why they are refused."""
        shared, config = self._shared, self._shared.config
        data = new.data if new is not None else {}
        try:
            source = f"ConfigMap {key}"
            settings = overlay(config.routing, data, source, config.proxy, config.policy, config.reserved)
        except ConfigError as problem:
            text = f"{problem}; the last good settings stay (routing.backend {self._backend})"
            shared.degraded.report("settings", SETTINGS_REFUSED, text)
            return
        shared.degraded.report("settings", SETTINGS_REFUSED, "")
        self._backend = settings.routing.backend
        for take_over in shared.on_settings:
            take_over(settings)
