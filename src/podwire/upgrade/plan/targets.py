"""What an upgrade goes to: the version of Kubernetes, and images that the user chooses. Pure."""

from collections.abc import Iterable, Mapping

from podwire.errors import ConfigError
from podwire.model.meta import Fact
from podwire.upgrade.inventory.components import NETWORK_COMPONENTS, PARTS_OF_PODWIRE
from podwire.upgrade.plan.values import ImageReference, parse_image
from podwire.upgrade.plan.versions import Version
from podwire.upgrade.plan.waves import WaveOptions

PODWIRE = "podwire"
"""Stands for every component of podwire that has no entry of its own: the chart gives all of them the same image."""
COMPONENTS = (*dict.fromkeys((*NETWORK_COMPONENTS, *PARTS_OF_PODWIRE)), PODWIRE, "kube-proxy", "coredns")
"""The components whose images an upgrade may change."""


class Targets(Fact, frozen=True, kw_only=True):
    """The targets of a plan."""

    version: Version
    images: Mapping[str, ImageReference] = {}
    """By ``component`` or ``component/container`` the new image."""
    mirrors: Mapping[str, str] = {}
    """Prefixes of images, and what takes their place (air-gapped clusters)."""
    digests: Mapping[str, str] = {}
    """Digests by the text of an image, which pin it."""
    waves: WaveOptions = WaveOptions()
    new_defaults: bool = False
    """Whether the Corefile also gets the lines that the stock Corefile got."""

    def image(self, component: str, container: str, default: ImageReference | None) -> ImageReference | None:
        """The new image of a container, in its mirror and with its digest; None: the image stays."""
        chosen = self.images.get(f"{component}/{container}") or self.chosen(component) or default
        return None if chosen is None else chosen.mirrored(self.mirrors).pinned(self.digests)

    def chosen(self, component: str) -> ImageReference | None:
        """The image that the user chose for the main container of a component; None: none."""
        image = self.images.get(component)
        return self.images.get(PODWIRE) if image is None and component in PARTS_OF_PODWIRE else image

    def names(self, component: str) -> bool:
        """Whether the user chose an image of a component."""
        return any(key.partition("/")[0] == component for key in self.images)


def parse_images(texts: Iterable[str], source: str) -> dict[str, ImageReference]:
    """The images of texts ``COMPONENT=IMAGE`` or ``COMPONENT/CONTAINER=IMAGE``.

    Raises: ConfigError naming ``source``.
    """
    images = {}
    for text in texts:
        key, equals, image = text.partition("=")
        if not equals or key.partition("/")[0] not in COMPONENTS:
            problem = f"expected COMPONENT=IMAGE with a component such as flannel or coredns, got {text!r}"
            raise ConfigError(source, "", problem)
        images[key] = parse_image(image, source, key)
    return images


def parse_mirrors(texts: Iterable[str], source: str) -> dict[str, str]:
    """The mirrors of texts ``PREFIX=PREFIX``.

    Raises: ConfigError naming ``source``.
    """
    mirrors = {}
    for text in texts:
        before, equals, after = text.partition("=")
        if not (before and equals and after):
            problem = f"expected a prefix and its mirror such as registry.k8s.io=mirror.example/k8s, got {text!r}"
            raise ConfigError(source, "", problem)
        parse_image(f"{after.rstrip('/')}/name", source, before)
        mirrors[before.rstrip("/")] = after
    return mirrors


def parse_digests(document: object, source: str) -> dict[str, str]:
    """The digests of a document: a mapping of images to digests.

    Raises: ConfigError naming the entry.
    """
    if not isinstance(document, dict):
        raise ConfigError(source, "", "expected a mapping of images to digests")
    for image, digest in document.items():
        parse_image(f"{parse_image(str(image), source, str(image)).name}@{digest}", source, str(image))
    return {str(image): str(digest) for image, digest in document.items()}
