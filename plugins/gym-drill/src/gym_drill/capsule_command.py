"""`gym capsule`: the command."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import click


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The file; by default RUN.capsule.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def capsule(run: Path, output: Path | None, as_json: bool) -> None:
    """Write what a finished run recorded into one file, from which `gym reproduce` reproduces it elsewhere.

    Recipe, record, metrics, versions, and hashes of data and weights: no weights, no data. The same run gives the same bytes.

    Example: `gym capsule runs/first -o first.capsule`
    """
    from gym_drill.capsule import capsule_of, packed, write  # which imports yaml and more

    found = capsule_of(run)
    file = output or found.folder.with_name(f"{found.name}.capsule") if found.folder else Path(f"{found.name}.capsule")
    write(found, file)
    data = packed(found)
    told = {"file": str(file), "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    click.echo(json.dumps(told) if as_json else f"wrote {file}: {len(data):,} bytes, SHA-256 {told['sha256']}")
