"""`gym export`: what a run or another folder holds, for another runtime, and whether an export still agrees with it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gym_core import Artifact, Component, Exporter, GymError, RecipeError, sections
from gym_core.component import Slot
from gym_core.discovery import entries
from gym_core.files import expanded
from gym_core.loading import load, load_component
from gym_core.sections import Findings
from gym_core.yamlfile import read_yaml
from gym_manage.recorded import RECORD, Recorded, artifact_in, found_in, may_be_name
from gym_manage.reopened import options, reopened

#: Lies beside what an exporter wrote: by which, with which options, and how well it agreed.
CERTIFICATE = "certificate.json"


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--to", "name", help="Exporter, by default safetensors; with --verify, all that lie in RUN/export.")
@click.option("--into", type=click.Path(path_type=Path), help="Where to write; default RUN/export/NAME.")
@click.option("--base", help="Where the base of an adapter or a delta lies now, if it was moved.")
@click.option("--verify", is_flag=True, help="Compare what was exported with the run again, and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def export(
    run: Path,
    overrides: tuple[str, ...],
    name: str | None,
    into: Path | None,
    base: str | None,
    verify: bool,
    as_json: bool,
) -> None:
    """Export what a finished RUN made, or RUN/checkpoints/step-...; `best` is the best one. KEY=VALUE sets an option.

    RUN may also be the folder of an artifact, of an adapter as peft writes it, or of a model of transformers, a family, or an id
    on the Hub, with --into.

    `gym plugins list --kind exporters` names them, and `gym plugins show gguf` lists the options of one.
    RUN/model is what was trained, an adapter as peft loads it; `safetensors` adds an adapter to its base.
    A file of another dialect may stand for it that says what to export, such as one of LLaMA-Factory.

    Example: `gym export runs/first --to gguf type=q8_0`
    """
    if run.suffix in (".yaml", ".yml"):
        if overrides or name or verify or base:
            raise GymError(
                "a file says all there is to say", where=str(run), fix="leave options out, or set them in it"
            )
        path = _of_file(run, into)
        click.echo(json.dumps({"export": str(path)}) if as_json else f"wrote {path}")
        return
    found = _named(run, name, overrides, into) if may_be_name(run) else found_in(run)
    if base is not None:
        found = replace(found, artifact=_based_on(found.artifact, base))  # exporters check that it is the same one
    if verify:
        if overrides:
            raise GymError("options are those of the certificate", key=overrides[0], fix="leave them out with --verify")
        places = [into] if into else list(_exports(found, name))
        if not places:
            raise GymError(
                "there is no export to verify", where=str(found.output / "export"), fix="name one: --into FOLDER"
            )
        checked = {str(place): _verified(found, place) for place in places}
        if as_json:
            click.echo(json.dumps({"verified": checked}))
        for place, figures in {} if as_json else checked.items():
            click.echo(f"{place}: {_said(figures)}")
        return
    name = name or "safetensors"
    target = into or found.place(f"export/{name.rpartition('/')[2]}")
    path = _exported(found, options(name, overrides), target)
    click.echo(json.dumps({"export": str(path)}) if as_json else f"wrote {path}")


def _named(run: Path, exporter: str | None, overrides: tuple[str, ...], into: Path | None) -> Recorded:
    """Return the model that a name means to an exporter. Raises GymError where it means none, or nobody says where to write."""
    if into is None and any(run.parent.glob(f"*/{RECORD}")):
        return found_in(run)  # which says what run was meant
    if into is None:
        why = "is the name of no folder here; of a family or a model of the Hub it is not known where to write"
        raise GymError(why, where=str(run), fix="say it: --into FOLDER; or name the output of a run")
    found = _exporter(options(exporter or "safetensors", overrides), Findings({})).named(str(run))
    return found_in(run) if found is None else Recorded(run, found, found, {}, "")


def _of_file(file: Path, into: Path | None) -> Path:
    """Write what a file says. Raises GymError where nobody reads such files, or with all that is wrong in it."""
    document = read_yaml(file)
    readers = [entry for entry in entries("export_dialects") if entry.name in document.data]
    if not readers:
        raise GymError("it does not say what to export", where=str(file), fix="name the output directory of a run")
    findings = Findings(dict(document.marks), folder=file.parent)
    told = load(readers[0])(document.data, findings)
    exporter = _exporter(told["exporter"], findings)
    model = told["model"] if told["adapter"] else str(told["located"](told["model"]))
    artifact, target = _artifact(model, told["adapter"]), into or Path(told["into"])
    if told.get("recipe"):
        run, hook = reopened(told["recipe"], target)
        quantized: Path = hook.quantize(run=run, artifact=artifact, into=target).path
        return quantized
    exporter.carries(artifact)
    path: Path = exporter.build().export(artifact, target)
    return path


def _exporter(options: Mapping[str, Any], findings: Findings) -> Exporter:
    """Return an exporter with its options. Raises RecipeError with all that is wrong."""
    exporter = sections.component(Slot("exporters"), options, ("export",), findings)
    if findings.problems:
        raise RecipeError(list(dict.fromkeys(findings.problems)))
    assert isinstance(exporter, Exporter)
    return exporter


def _artifact(model: str, adapter: str | None) -> Artifact:
    """Return the artifact in a folder; an adapter belongs to the model named beside it, or is refused by its fingerprint."""
    path = expanded(adapter or model)
    found = artifact_in(path)
    if adapter and found.kind == "model":
        raise GymError(
            "holds a whole model, not an adapter", where=str(path), fix="name it as the model, without an adapter"
        )
    return replace(found, base=model) if adapter else found


def _based_on(artifact: Artifact, base: str) -> Artifact:
    if artifact.kind == "model":
        raise GymError("is a whole model, and has no base", where=str(artifact.path), key="--base", fix="leave it out")
    return replace(artifact, base=str(Path(base).resolve()) if Path(base).exists() else base)


def _exported(found: Recorded, exporter: Mapping[str, Any], into: Path) -> Path:
    try:
        if not found.recipe:
            alone = _exporter(exporter, Findings({}))
            alone.carries(found.artifact)
            written: Path = alone.build().export(found.artifact, into)
            return written
        again, hook = reopened({**found.recipe, "export": [exporter]}, found.output)
        path: Path = hook.export(run=again, artifact=found.artifact, exporter=again.recipe.export[0], into=into)
    except SystemExit as error:  # nobody may pass for success
        raise GymError(f"something called sys.exit({error.code!r}) before the export was done") from None
    return path


def _exports(found: Recorded, name: str | None) -> Iterator[Path]:
    """Yield the exports of a run, or of a checkpoint of it, that lie where they are written by default."""
    for place in sorted((found.output / "export").glob("*")):
        of_checkpoint = "-step-" in place.name
        mine = place.name.endswith(found.label) if found.label else not of_checkpoint
        if (
            mine
            and (place / CERTIFICATE).is_file()
            and (name is None or place.name.startswith(name.rpartition("/")[2]))
        ):
            yield place


def _verified(found: Recorded, place: Path) -> Mapping[str, Any]:
    """Have the exporter that wrote an export compare it again. Raises GymError where its certificate does not say which."""
    file = place / CERTIFICATE
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
        value, settings = str(told["exporter"]), dict(told["options"])
    except FileNotFoundError:
        raise GymError(f"there is no {CERTIFICATE}, so this is no certified export", where=str(place)) from None
    except (ValueError, KeyError, TypeError):
        raise GymError(f"{CERTIFICATE} is damaged", where=str(place), fix="export again, to another folder") from None
    names = [entry.qualified for entry in entries("exporters") if _package(entry.value) == _package(value)]
    names = [name for name in names if _written(load_component("exporters", name)[1]) == value]
    if not names:
        raise GymError(f"it was written by {value}, which is not installed", where=str(place))
    exporter = _exporter({"name": names[0], **settings}, Findings({}))
    checked: Mapping[str, Any] = exporter.build().verify(found.artifact, place)
    return checked


def _package(value: str) -> str:
    return value.partition(":")[0].partition(".")[0]


def _written(cls: type[Component]) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _said(figures: Mapping[str, Any]) -> str:
    off = figures.get("relative_difference", figures.get("weights_relative_difference"))
    what = figures.get("compared", "weights")
    return f"verified, {what} {off:.2g} off (relative)" if off is not None else "verified"
