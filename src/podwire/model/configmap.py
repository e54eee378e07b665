"""ConfigMaps whose values are texts."""

from podwire.model.meta import Fact, ObjectMeta


class ConfigMap(Fact, frozen=True):
    """A ConfigMap without its binary values."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] = {}
