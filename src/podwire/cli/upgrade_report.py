"""The command ``podwire upgrade report``."""

from pathlib import Path

import click

from podwire.cli.options import name_option


@click.command()
@click.argument("file", required=False, metavar="[FILE]")
@name_option
@click.option(
    "-o", "--output", type=click.Choice(("text", "markdown", "json", "svg")), default="text", show_default=True,
    help="Output format; svg is the timeline.",
)  # fmt: skip
@click.option("--folder", metavar="FOLDER", help="Write all formats there: loss-proof.txt, .md, .json and .svg.")
def report(file: str | None, name: str, output: str, folder: str | None) -> int:
    """Show how many messages an upgrade lost, on which path, when, and what changed in the kernels then.

    FILE is the proof of an upgrade; without it, the last one of the local cluster. The exit status is 1 when a message
    was lost, or a denied one arrived.
    """
    from podwire.flows import proof, prooftext, timeline
    from podwire.runtime.files import write_atomically

    source = file or _of_cluster(name)
    loss_proof = proof.parse_json(_read(source), source)
    forms = {
        "text": lambda: prooftext.text(loss_proof),
        "markdown": lambda: prooftext.markdown(loss_proof, "loss-proof.svg" if folder else ""),
        "json": lambda: proof.render_json(loss_proof),
        "svg": lambda: timeline.svg(loss_proof),
    }
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for form, suffix in (("text", "txt"), ("markdown", "md"), ("json", "json"), ("svg", "svg")):
            write_atomically(Path(folder, f"loss-proof.{suffix}"), forms[form]().encode())
    else:
        click.echo(forms[output](), nl=False)
    lost, _, leaked, _ = proof.counts(loss_proof)
    return 1 if lost or leaked else 0


def _of_cluster(name: str) -> str:
    from podwire.local import inventory
    from podwire.local.rollout.run import folder_of

    return str(folder_of(inventory.existing(name)) / "proof.json")


def _read(source: str) -> bytes:
    from podwire.errors import ConfigError

    try:
        return Path(source).read_bytes()
    except OSError as failure:
        raise ConfigError(source, "", f"no loss proof: {failure.strerror}") from failure
