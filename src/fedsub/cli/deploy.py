"""`fedsub deploy`: a deployment over Flower, from an empty folder to a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsub.cli.commands import Json, examples

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="markdown",
    help="Real nodes over Flower: make a deployment, check it, run it, watch it, go on with it.",
)  # fmt: skip
Folder = Annotated[
    Path, typer.Option("--folder", "-C", help="The deployment's folder, with its deploy.toml.", metavar="DIR")
]
Local = Annotated[
    int | None, typer.Option("--nodes", help="Nodes on this machine instead of nodes.local; 0: all are elsewhere.")
]
Listen = Annotated[
    str | None, typer.Option("--listen", help="Where the proxy listens, instead of proxy.listen.", metavar="HOST:PORT")
]
Out = Annotated[
    Path | None, typer.Option("--out", help="The run's directory, instead of run.out.", metavar="DIR")
]  # fmt: skip
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say only how it ended.")]
HERE = Path()


@app.callback()
def deploy() -> None:
    """Real nodes over Flower: make a deployment, check it, run it, watch it, go on with it."""


@app.command(epilog=examples("fedsub deploy new demo", "fedsub deploy new shops --nodes 20 --name fed.example.org"))
def new(
    name: Annotated[Path, typer.Argument(help="The folder to make; its name is the app's.", show_default=False)],
    nodes: Annotated[int, typer.Option(help="Nodes to make keys and data for.")] = 5,
    named: Annotated[
        list[str] | None,
        typer.Option("--name", help="What nodes call the server. Default localhost. Repeatable.", metavar="HOST"),
    ] = None,
    port: Annotated[int, typer.Option(help="Of Flower's SuperLink, on loopback.")] = 8000,
    entrance: Annotated[int, typer.Option(help="Of the proxy, which nodes connect to.")] = 8443,
    page: Annotated[int, typer.Option(help="Of the status page, on loopback.")] = 8080,
    json: Json = False,
) -> None:
    """Write a working app with certificates, keys and all that starts it; then: cd NAME && make run."""
    from fedsub.cli.show import View
    from fedsub.deploy.scaffold import new as make

    view = View(as_json=json)
    ports = {"port": port, "entrance": entrance, "page": page}
    folder = make(name, nodes=nodes, names=named or (), ports=ports)
    view.line(f"Made {folder}: an app, certificates, and keys for {nodes} nodes.")
    view.note(f"Now: cd {name} && make run")
    view.finish({"command": "new", "folder": str(folder), "nodes": nodes})


@app.command(epilog=examples("fedsub deploy check", "fedsub deploy check --outside fed.example.org:8443"))
def check(
    folder: Folder = HERE,
    outside: Annotated[
        str | None,
        typer.Option(help="Also ask this address what strangers get; best from another machine.", metavar="HOST:PORT"),
    ] = None,
    without_app: Annotated[bool, typer.Option("--without-app", help="Leave out the app: nothing is imported.")] = False,
    json: Json = False,
) -> None:
    """All that can be refused before anything starts: app, data, keys, certificates, ports, who reaches what."""
    from fedsub.cli.deploy_runs import checked
    from fedsub.cli.show import View
    from fedsub.deploy.site import Site

    checked(Site.open(folder), View(as_json=json), outside=outside, app=not without_app)


@app.command(epilog=examples(
    "fedsub deploy run", "fedsub deploy run --nodes 0 --listen 0.0.0.0:8443", "fedsub deploy run --out runs/second"
))  # fmt: skip
def run(
    folder: Folder = HERE,
    nodes: Local = None,
    listen: Listen = None,
    out: Out = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what is in run.out, if there is any.")] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Start everything, submit the app, and stay until the run is finished, whatever ends in between."""
    from fedsub.cli.deploy_runs import opened, supervise
    from fedsub.cli.show import View

    supervise(opened(folder, nodes, listen, out), View(quiet=quiet, as_json=json), "any" if resume else "new")


@app.command(epilog=examples("fedsub deploy simulate", "fedsub deploy simulate --rounds 20"))
def simulate(
    folder: Folder = HERE,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to play.")] = 2,
    cpus: Annotated[int, typer.Option(min=1, help="CPUs that a node takes while it computes.")] = 1,
    json: Json = False,
) -> None:
    """The same app in Flower's own simulation: no keys, no proxy, every node whose data is here. A last check."""
    from fedsub.cli.deploy_runs import simulated
    from fedsub.cli.show import View
    from fedsub.deploy.site import Site

    simulated(Site.open(folder), View(as_json=json), rounds, cpus)


@app.command(epilog=examples("fedsub deploy resume", "fedsub deploy resume -C demo"))
def resume(
    folder: Folder = HERE,
    nodes: Local = None,
    listen: Listen = None,
    out: Out = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Go on with a run that was stopped, failed, or shall have more rounds."""
    from fedsub.cli.deploy_runs import opened, supervise
    from fedsub.cli.show import View

    supervise(opened(folder, nodes, listen, out), View(quiet=quiet, as_json=json), "old")


@app.command(epilog=examples("fedsub deploy status", "fedsub deploy status --json", "fedsub deploy status --metrics"))
def status(
    folder: Folder = HERE,
    out: Out = None,
    metrics: Annotated[bool, typer.Option("--metrics", help="As Prometheus reads it.")] = False,
    json: Json = False,
) -> None:
    """What really became of the run. Ends with 1 if it failed or was interrupted."""
    from fedsub.cli.deploy_runs import opened, shown
    from fedsub.cli.show import View

    shown(opened(folder, None, None, out), View(as_json=json), metrics=metrics)


@app.command(epilog=examples("fedsub deploy stop"))
def stop(folder: Folder = HERE, json: Json = False) -> None:
    """End the supervisor and all that it started, or what a killed one left behind. `resume` goes on."""
    from fedsub.cli.deploy_runs import stopped
    from fedsub.cli.show import View
    from fedsub.deploy.site import Site

    stopped(Site.open(folder), View(as_json=json))


@app.command(epilog=examples("fedsub deploy page", "fedsub deploy page --port 0"))
def page(
    folder: Folder = HERE,
    port: Annotated[int | None, typer.Option(help="Instead of page.port; 0: any that is free.")] = None,
    out: Out = None,
) -> None:
    """Serve the status page by itself, on loopback, until Ctrl-C; `run` serves it while it runs."""
    from fedsub.cli.deploy_runs import opened, served
    from fedsub.cli.show import View

    served(opened(folder, None, None, out), View(), port)


@app.command(epilog=examples("fedsub deploy certificates --name fed.example.org --name 192.0.2.7"))
def certificates(
    folder: Folder = HERE,
    named: Annotated[
        list[str] | None, typer.Option("--name", help="Instead of server.names. Repeatable.", metavar="HOST")
    ] = None,
    authority: Annotated[
        bool, typer.Option("--authority", help="A new authority, too: every node needs the new ca.crt then.")
    ] = False,
) -> None:
    """Make the server's certificate anew, and the runtime's secret."""
    from fedsub.cli.show import View
    from fedsub.deploy import keys
    from fedsub.deploy.site import Site

    site, view = Site.open(folder), View()
    if authority or not site.authority.exists():
        keys.make_authority(site.certificates, site.name)
        view.line(f"Made {site.authority}; every node needs it.")
    names = named or site.settings.server.names
    keys.make_server(site.certificates, names)
    keys.make_secret(site.certificates)
    view.line(f"Made {site.certificates / 'server.crt'} for {', '.join(names)}; the next start takes it.")


@app.command(epilog=examples("fedsub deploy key keys/node-7"))
def key(
    path: Annotated[Path, typer.Argument(help="Where the private key goes; the public one beside it, .pub.")],
) -> None:
    """Make a node's key pair, on the node. Only the .pub goes to the server's keys/."""
    from fedsub.cli.show import View
    from fedsub.deploy.keys import make_node_key

    View().line(f"Made {path} and {make_node_key(path)}. Send the .pub to the server's keys/; keep the other here.")
