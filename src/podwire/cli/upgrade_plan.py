"""The commands ``podwire upgrade plan`` and ``podwire upgrade preflight``."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from podwire.cli.options import kubeconfig_option, output_option

if TYPE_CHECKING:
    from podwire.upgrade.plan.targets import Targets
    from podwire.upgrade.plan.values import UpgradePlan

_to_option = click.option(
    "--to", "target", metavar="VERSION", required=True, help="Kubernetes version: 1.36 or 1.36.1."
)
_image_option = click.option(
    "--image", "images", metavar="COMPONENT=IMAGE", multiple=True,
    help="New image of a component, or of COMPONENT/CONTAINER; networks of pods change only with this option.",
)  # fmt: skip
_mirror_option = click.option(
    "--mirror", "mirrors", metavar="PREFIX=PREFIX", multiple=True,
    help="Another registry for images that begin with a prefix, as in registry.k8s.io=mirror.example/k8s.",
)  # fmt: skip
_digests_option = click.option(
    "--digests", "digests_file", metavar="FILE", help="YAML or JSON: digests by image; these images are pinned."
)
_unavailable_option = click.option(
    "--max-unavailable", metavar="NUMBER", default="10%", show_default=True, help="Nodes of a wave, or a percentage."
)
_zones_option = click.option(
    "--zones", type=click.Choice(("serial", "spread")), default="serial", show_default=True,
    help="Waves of one zone after the other, or of all zones in turn.",
)  # fmt: skip
_canary_option = click.option("--canary", metavar="NODE", default="", help="The node that is upgraded first.")
_defaults_option = click.option(
    "--new-defaults", is_flag=True, help="Also add the lines that the stock Corefile got since the old version."
)
_output_option = click.option(
    "-o", "--output", type=click.Choice(("text", "markdown", "json")), default="text", show_default=True,
    help="Output format.",
)  # fmt: skip

_node_pods_option = click.option(
    "--node-image", metavar="IMAGE",
    help="Also read configurations of networks and kernel modules of every node, by a pod of this image, with a shell.",
)  # fmt: skip
_directory_option = click.option(
    "--cni-conf-dir", "directory", metavar="DIR", default="",
    help="The directory of these configurations on nodes.  [default: that of the layout, /etc/cni/net.d]",
)  # fmt: skip


_C = TypeVar("_C", bound=Callable[..., object])


def target_options(command: _C) -> _C:
    """The options of what a plan goes to, but the version; :func:`targets_of` takes their values."""
    for option in (
        _defaults_option, _canary_option, _zones_option, _unavailable_option, _digests_option, _mirror_option,
        _image_option,
    ):  # fmt: skip
        command = option(command)
    return command


@click.command()
@kubeconfig_option
@_to_option
@target_options
@_output_option
def plan(kubeconfig: str | None, target: str, output: str, **options: Any) -> int:
    """Show what an upgrade of the cluster's network would do; changes nothing.

    The plan lists components, findings and steps; `-o json` makes the file that `podwire upgrade apply` takes. The exit
    status is 1 when there is a blocker.
    """
    from podwire.upgrade.plan.text import plan_markdown, plan_text
    from podwire.upgrade.plan.values import plan_json

    result = plan_now(kubeconfig, targets_of(target, **options))
    forms = {"text": plan_text, "markdown": plan_markdown, "json": plan_json}
    click.echo(forms[output](result), nl=False)
    return 1 if result.blocked else 0


def plan_now(kubeconfig: str | None, targets: "Targets") -> "UpgradePlan":
    """The plan for the cluster of a kubeconfig.

    Raises: ConfigError, ApiError, ApiUnreachable.
    """
    import asyncio

    from podwire.runtime.memory import importing

    with importing():  # the objects of a large cluster stay until the end, too
        from podwire.cli.api import client_of
        from podwire.upgrade.inventory.read import read_inventory
        from podwire.upgrade.plan.compose import make_plan

        inventory = asyncio.run(read_inventory(client_of(kubeconfig)))
    return make_plan(inventory, targets)


def targets_of(
    target: str,
    images: tuple[str, ...],
    mirrors: tuple[str, ...],
    digests_file: str | None,
    new_defaults: bool,
    **waves: Any,
) -> "Targets":
    """The targets of the options.

    Raises: ConfigError naming the option.
    """
    from podwire.upgrade.plan.targets import Targets, parse_images, parse_mirrors
    from podwire.upgrade.plan.versions import parse_target
    from podwire.upgrade.plan.waves import WaveOptions, wave_size

    options = WaveOptions(**waves)
    wave_size(options, 1)
    return Targets(
        version=parse_target(target, "--to"),
        images=parse_images(images, "--image"),
        mirrors=parse_mirrors(mirrors, "--mirror"),
        digests=digests_of(digests_file),
        waves=options,
        new_defaults=new_defaults,
    )


def digests_of(file: str | None) -> dict[str, str]:
    """The digests in a file; none without a file.

    Raises: ConfigError.
    """
    import yaml

    from podwire.errors import ConfigError
    from podwire.upgrade.plan.targets import parse_digests

    if file is None:
        return {}
    try:
        document = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as failure:
        raise ConfigError(file, "", f"cannot be read: {failure}") from failure
    except (yaml.YAMLError, RecursionError) as failure:
        raise ConfigError(file, "", f"is not YAML: {failure}") from failure
    return parse_digests(document, file)


@click.command()
@kubeconfig_option
@_to_option
@_image_option
@output_option
@_node_pods_option
@_directory_option
def preflight(
    kubeconfig: str | None, target: str, images: tuple[str, ...], output: str, node_image: str | None, directory: str
) -> int:
    """Check whether an upgrade of the cluster's network can begin; changes nothing.

    Each line names what is wrong and what to do. The exit status is 1 when there is a blocker.
    """
    import asyncio

    from podwire.cli.api import client_of
    from podwire.cli.output import print_json
    from podwire.upgrade.plan.targets import Targets, parse_images
    from podwire.upgrade.plan.text import findings_text
    from podwire.upgrade.plan.versions import parse_target
    from podwire.upgrade.preflight.run import run

    targets = Targets(version=parse_target(target, "--to"), images=parse_images(images, "--image"))
    findings = asyncio.run(run(client_of(kubeconfig), targets, node_image, directory))
    if output == "json":
        print_json(findings)
    else:
        click.echo(findings_text(findings) or "no problems found\n", nl=False)
    return 1 if any(finding.severity == "blocker" for finding in findings) else 0
