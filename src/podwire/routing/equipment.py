"""What a node has for its backends: the key pairs that it keeps, and features of the kernel that change a plan."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from podwire.routing.backend import Backend, FeatureUser, KeyHolder
from podwire.routing.nodes import LocalNode, NodeKey, Peer


class Keys(Protocol):
    """Keeps the key pairs of backends, as ``routing.keys`` does."""

    def keep(self, backend: str, names: Iterable[str]) -> Mapping[str, NodeKey]:
        """The key pairs of a backend by name; missing ones are made, and those of other names are deleted.

        Raises: OSError.
        """
        ...


def with_equipment(
    me: LocalNode,
    peers: Sequence[Peer],
    used: Mapping[str, Backend],
    keys: Keys | None,
    lacks: Callable[[str], str],
) -> LocalNode:
    """The node with what the backends in use need; ``used`` are those of them that the kernel can run.

    Raises: OSError when keys cannot be read or written.
    """
    pairs = {
        name: keys.keep(name, backend.key_names((*peers, me)))
        for name, backend in used.items()
        if keys is not None and isinstance(backend, KeyHolder)
    }
    requested = {
        feature for backend in used.values() if isinstance(backend, FeatureUser) for feature in backend.features
    }
    features = frozenset(feature for feature in requested if not lacks(feature))
    return replace(me, keys=pairs, features=features) if pairs or features else me
