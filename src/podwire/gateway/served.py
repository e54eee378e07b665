"""Which certificate of a Secret is served: the newest, or, where engines refuse that, the last that they accepted."""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from podwire.gateway.routes import Certificate

_OF_GATEWAYS = "gateway "


class ServedCertificates:
    """Follows what engines say about certificates."""

    def __init__(self) -> None:
        self._accepted: dict[str, Certificate] = {}
        self._refused: dict[str, tuple[Certificate, str]] = {}
        self.version = 0
        """Counts what was learned of refusals."""

    @property
    def refused(self) -> dict[tuple[str, str], str]:
        """What engines said about Secrets that they refuse."""
        return {("Secret", key): message for key, (_, message) in self._refused.items()}

    def of(self, newest: Callable[[str], Certificate | str]) -> Callable[[str], Certificate | str]:
        """Gives the certificate of a Secret to serve, or the reason why it has none; forgets what has changed."""
        self._refused = {key: entry for key, entry in self._refused.items() if newest(key) == entry[0]}

        def serve(key: str) -> Certificate | str:
            if key not in self._refused:
                return newest(key)
            return self._accepted.get(key, f"the engine refused the certificate: {self._refused[key][1]}")

        return serve

    def learn(self, served: Iterable[Certificate], refused: Mapping[str, str]) -> bool:
        """Takes certificates of an entry and what engines refuse by their names; whether that is news."""
        is_new = False
        for entry in served:
            key = entry.name.removeprefix(_OF_GATEWAYS)
            own = msgspec.structs.replace(entry, name=key)
            if entry.name not in refused:
                self._accepted[key] = own
            elif self._refused.get(key) != (own, refused[entry.name]):
                self._refused[key] = (own, refused[entry.name])
                is_new = True
        self.version += is_new
        return is_new


def certificate_name(secret: str) -> str:
    """The name of the certificate of a Secret in the entry of Gateways; in that of Ingresses it is the key alone."""
    return f"{_OF_GATEWAYS}{secret}"
