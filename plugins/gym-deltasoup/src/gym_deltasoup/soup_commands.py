"""`gym soup`: a community server, and what contributors run."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gym_core import GymError
from gym_core.errors import FAILED, printable
from gym_core.files import expanded
from gym_core.record import plain
from gym_deltasoup.config.server import SoupServerConfig, load_server
from gym_manage.options_command import OptionsCommand

if TYPE_CHECKING:
    from gym_deltasoup.client.client import SoupClient
    from gym_deltasoup.ledger.ledger import Ledger

_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_server = click.option(
    "--server",
    "url",
    envvar="GYM_SOUP_SERVER",
    default="http://127.0.0.1:8770",
    show_default=True,
    show_envvar=True,
    help="Address of the server.",
)
_key = click.option(
    "--key",
    envvar="GYM_SOUP_KEY",
    default="~/.config/gym/soup.pem",
    show_default=True,
    show_envvar=True,
    help="File of the key that signs; it is made where there is none.",
)
_token = click.option("--token-file", type=click.Path(path_type=Path), help="File with the token of the server.")
_member = click.option("--member", envvar="GYM_SOUP_MEMBER", required=True, show_envvar=True, help="Your name there.")


@click.group()
def soup() -> None:
    """Merge what a community trained, in rounds, on a server."""


@soup.command(cls=OptionsCommand, options=SoupServerConfig)
@click.argument("config", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def serve(config: Path | None, overrides: tuple[str, ...]) -> None:
    """Serve a community as CONFIG says. Stopped or killed, the same command goes on.

    Example: `gym soup serve soup.yaml port=8770`
    """
    if config is not None and "=" in str(config):
        config, overrides = None, (str(config), *overrides)
    said = load_server(config, overrides)
    try:
        from gym_deltasoup.server.serve import SoupServer
    except ModuleNotFoundError as error:
        why = f"a server needs {error.name}, which is not installed"
        raise GymError(why, fix="pip install 'gym-deltasoup[server]'") from None
    server = SoupServer(said, say=click.echo)
    click.echo(f"community {server.service.community.server}, {said.enrolment} enrolment")
    click.echo(f"listening at {server.url}")
    server.run()


@soup.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False, exists=True))
def invite(folder: Path) -> None:
    """Print a code that lets one join the community in FOLDER.

    Example: `gym soup invite soup`
    """
    from gym_deltasoup.server.enrolment import invite as made

    with closing(_opened(folder)) as ledger:
        click.echo(made(ledger))


@soup.command()
@_member
@click.option("--proof", default="", help="An invitation, or a proof of who you are, as the server asks.")
@_server
@_key
@_token
@_json
def join(member: str, proof: str, url: str, key: str, token_file: Path | None, as_json: bool) -> None:
    """Become a member of a community. Your key is known there by your name.

    Example: `gym soup join --member anna --server https://soup.example.org`
    """
    told = _client(url, key, token_file).join(member, proof)
    _say(told, as_json, f"{told['member']} is a member since round {told['since']}")


@soup.command()
@click.argument("model", type=click.Path(path_type=Path, exists=True))
@_member
@_server
@_key
@_token
@_json
def contribute(model: Path, member: str, url: str, key: str, token_file: Path | None, as_json: bool) -> None:
    """Contribute MODEL to a community. It is the directory of a run, a model, an adapter or a delta; the same command goes on
    where it broke off.

    Example: `gym soup contribute runs/first --member anna`
    """
    from functools import partial

    from gym_deltasoup.client.contribute import contribute_model

    event = contribute_model(_client(url, key, token_file), member, model, partial(click.echo, err=True))
    _say(event._asdict(), as_json, f"round {event.round} accepted it: event {event.number}, {event.hash}")


@soup.command()
@click.option("--member", envvar="GYM_SOUP_MEMBER", show_envvar=True, help="Your name there.")
@_server
@_key
@_token
@_json
def status(member: str | None, url: str, key: str, token_file: Path | None, as_json: bool) -> None:
    """Show the round of a community, and what it knows of a member."""
    client = _client(url, key, token_file)
    told = client.server()
    mine = client.member(member) if member else None
    now = told["round"]
    lines = [
        f"community {told['server']}, base {told['base']['name']} {told['base']['fingerprint'][:12]}",
        f"round {now['number']} is {now['state']}: {now['contributions']} contributions, needs {now['min_contributors']}",
    ]
    if now["trouble"]:
        lines.append(f"the last one could not end: {now['trouble']}")
    if mine is not None:
        lines.append(
            f"{mine['member']}: reputation {mine['reputation']:.3f}, contributed {mine['contributed'] or 'nothing'}"
        )
        lines += [f"refused: {why}" for why in mine["refused"]]
    _say({**told, "member": mine}, as_json, *lines)


@soup.command()
@click.argument("number", type=int)
@click.option("--into", required=True, type=click.Path(path_type=Path), help="Folder to write, which is not there yet.")
@click.option("--base", help="The base of the community, where it is called otherwise here: a folder, or a Hub id.")
@_server
@_token
@_json
def fetch(number: int, into: Path, base: str | None, url: str, token_file: Path | None, as_json: bool) -> None:
    """Fetch what round NUMBER made, each file as the ledger names it. The folder can be served, exported and trained on.

    Example: `gym soup fetch 1 --into runs/round-1`
    """
    from gym_deltasoup.client.fetch import fetch as fetched

    found = fetched(_client(url, None, token_file), number, into, base)
    _say(found.to_json(), as_json, f"wrote {into}, {found.kind} of {found.base or 'round ' + str(number)}")


@soup.command()
@click.argument("source")
@click.option("--known", help="Hash of an event of an earlier day, which has to be there.")
@click.option("--export", "into", type=click.Path(path_type=Path, dir_okay=False), help="Write the events to a file.")
@_token
@_json
def verify(source: str, known: str | None, into: Path | None, token_file: Path | None, as_json: bool) -> None:
    """Check the ledger of SOURCE. SOURCE is the folder of a community, the address of its server, or what `--export` wrote.

    Example: `gym soup verify soup --export ledger.jsonl`
    """
    from gym_deltasoup.ledger import verify as ledgers
    from gym_deltasoup.rounds.verify_files import verify_files

    extra: list[str] = []
    if source.startswith(("http://", "https://")):
        server, events = _client(source, None, token_file).ledger()
    elif Path(source).is_dir():
        server, events = _of_folder(Path(source))
        extra = verify_files(Path(source), events)
    else:
        try:
            server, events = ledgers.imported(Path(source).read_text(encoding="utf-8").splitlines())
        except (OSError, ValueError) as error:
            why = "is not there" if isinstance(error, FileNotFoundError) else f"is no ledger: {str(error)[:100]}"
            fix = "name the folder of a community, the address of its server, or a file that `--export` wrote"
            raise GymError(why, where=source, fix=fix) from None
    found = ledgers.verify(server, events, known)
    problems = [*found.problems, *extra]
    if into is not None:
        into.write_text("\n".join(ledgers.exported(server, events)) + "\n", encoding="utf-8")
    told = {"server": server, "events": found.events, "head": found.head, "accepted": found.accepted}
    told |= {"signatures": found.signatures, "roots": found.rounds, "problems": problems}
    _say(
        told,
        as_json,
        f"{found.events} events, {found.accepted} contributions, {found.signatures} signatures; head {found.head}",
        *(f"round {number}: root {root}" for number, root in found.rounds.items()),
        *(printable(each) for each in problems),
    )
    if problems:
        raise click.exceptions.Exit(FAILED)


@soup.command()
@click.argument("source")
@click.argument("number", type=int)
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a page with plots.")
@_token
@_json
def report(source: str, number: int, html: Path | None, token_file: Path | None, as_json: bool) -> None:
    """Show the report of round NUMBER of SOURCE. SOURCE is the folder of a community, or the address of its server.

    Example: `gym soup report soup 1 --html round-1.html`
    """
    from gym_deltasoup.reports.html import page
    from gym_deltasoup.reports.table import lines

    if source.startswith(("http://", "https://")):
        told = _client(source, None, token_file).report(number)
    else:
        file = Path(source) / "rounds" / str(number) / "report.json"
        if not file.is_file():
            raise GymError(f"there is no report of round {number}", where=source)
        told = json.loads(file.read_text(encoding="utf-8"))
    if html is not None:
        html.write_text(page(told), encoding="utf-8")
    _say(told, as_json, *lines(told))


def _client(url: str, key: str | None, token_file: Path | None) -> SoupClient:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from gym_deltasoup.client.client import SoupClient
    from gym_deltasoup.ledger.signatures import private_key

    try:
        token = "" if token_file is None else token_file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise GymError(f"cannot be read: {error.strerror}", where=str(token_file), key="--token-file") from None
    mine = Ed25519PrivateKey.generate() if key is None else private_key(expanded(key))
    return SoupClient(url, mine, token)


def _opened(folder: Path) -> Ledger:
    """Return the ledger in a folder. Raises GymError where there is none: none is made."""
    from gym_deltasoup.ledger.database import NAME
    from gym_deltasoup.ledger.ledger import Ledger

    if not (folder / NAME).is_file():
        why = "there is no ledger here"
        raise GymError(why, where=str(folder), fix="name the `folder` of a community; `gym soup serve` makes it")
    return Ledger(folder)


def _of_folder(folder: Path) -> tuple[str, list[Any]]:
    with closing(_opened(folder)) as ledger:
        return str(ledger.identity("server")), [*ledger.every_event()]


def _say(told: Any, as_json: bool, *lines: str) -> None:
    click.echo(json.dumps(plain(told)) if as_json else "\n".join(lines))
