"""Loads artifacts: a model with its adapter, or a model with a trained head."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from gym_core import Artifact, GymError
from gym_torch.checkpoints import weight_shards
from gym_torch.checkpoints.base_model import base_of
from gym_torch.checkpoints.checkpoint_folders import MANIFEST, problem
from gym_torch.checkpoints.load_delta import with_delta
from gym_torch.checkpoints.peft_folder import fit_vocabulary, is_peft, peft_artifact
from gym_torch.console import say
from gym_torch.kinds import LoadTimeQuantizer
from gym_torch.model import fingerprint, mapped_weights
from gym_torch.model.adapted import AdaptedModel, Full, Plain, build_adapter, skeleton
from gym_torch.model.scalar_head import ScalarHead
from gym_torch.model.tasks import Task, built, headed, task_in, task_of
from gym_torch.recorded_components import maker_of, quantizer_of

CERTIFICATE = "certificate.json"  #: lies beside what an exporter wrote, and says how well that agrees with the artifact
FROM = "quantized_from"  #: in the details of a quantized model: the artifact that it was made from, with its path from there


@dataclass(frozen=True)
class Opened:
    """What an artifact holds, in memory or mapped."""

    adapted: AdaptedModel
    task: Task
    head: ScalarHead | None  #: where the task is to score

    def plain(self) -> Plain:
        """Return what computes the same without an adapter, as transformers keeps it; its weights come one after another.

        Raises GymError where there is no such model.
        """
        return headed(self.adapted.merged_weights(), self.task, self.head)


def quantized_from(artifact: Artifact, into: Path) -> dict[str, Any]:
    """Return what the details of a model that a quantizer writes to `into` say of the artifact that it is made from."""
    told = artifact.to_json() | {"path": os.path.relpath(artifact.path.resolve(), into.resolve())}
    return {FROM: told, "quantized_from_fingerprint": fingerprint.of_model(artifact.path)}


def to_export(artifact: Artifact) -> Artifact:
    """Return what exporters write of an artifact: of a model that was quantized after training what was trained, if it is there.

    The quantized model is a checkpoint already, and its codes are of no use to another format.
    """
    before = artifact.details.get(FROM)
    path = (artifact.path / before["path"]).resolve() if before else artifact.path
    if before is None or fingerprint.of_model(path) != artifact.details["quantized_from_fingerprint"]:
        return artifact
    say(f"{artifact.path} is quantized and stays as it is; {path}, which was trained, is exported")
    return Artifact(**{**before, "path": path})


def as_stored(artifact: Artifact) -> Artifact:
    """Return a quantized model as the directory that it is, for whoever only computes with it; any other as it is."""
    return replace(artifact, details={key: value for key, value in artifact.details.items() if key != "quantization"})


def opened(artifact: Artifact, dtype: torch.dtype | str = "auto", exact: bool = False) -> Opened:
    """Open what a run made with all that belongs to it, by default in the precision of its files, mapped; see `open_artifact`.

    Raises what `open_artifact` does, and GymError where it is for a task that nobody knows, or its head is missing.
    """
    task = task_of(artifact.task)
    if artifact.kind == "model" and task.scores and task_of(task_in(artifact.path)).scores:
        return _classifier(artifact, task)
    head = ScalarHead.read(artifact.path) if task.scores else None
    return Opened(open_artifact(artifact, dtype, exact=exact), task, head)


def _classifier(artifact: Artifact, task: Task) -> Opened:
    """Open a classifier of transformers whose head looks at the last token, and gives one number."""
    model = mapped_weights.load(artifact.path, kind=task.kind)
    score: Any = getattr(model, "score", None)
    weight = score.weight if isinstance(score, torch.nn.Linear) else None
    if weight is None or weight.shape[0] != 1:
        why = (
            f"{type(model).__name__} gives {model.config.num_labels} numbers"
            if weight is not None
            else "its head is no `score`"
        )
        fix = "name a reward model: a decoder with `num_labels: 1`, or a run that trained one"
        raise GymError(f"one score for each text is wanted: {why}", where=str(artifact.path), fix=fix)
    head = ScalarHead(weight.shape[1])
    head.weight.data.copy_(weight.detach())
    if score.bias is not None:
        head.bias.data.copy_(score.bias.detach())
    return Opened(Full(None, model, trained=lambda name: False), task, head)


def open_artifact(
    artifact: Artifact,
    dtype: torch.dtype | str = torch.float32,
    quantizer: LoadTimeQuantizer | None = None,
    exact: bool = False,
) -> AdaptedModel:
    """Load the language model that a run made, with its adapter beside the weights, not merged; a delta is added to them.

    With a `dtype` of `auto` it is mapped, in the precision of its files. A `quantizer` holds its linear layers in a few bits; the
    base of an adapter that belongs to a quantized one is quantized as that was.

    Modules that an adapter trained whole take the precision of what they stand for, so that the layers behind them take what they
    compute. With `exact` they keep all digits, and so does every weight of files with several precisions, for who computes in
    fp32 (`gym_torch.model.tasks.answers`).

    Raises:
        GymError: it is no model, adapter or delta, is quantized, does not say which adapter made it, or weights are missing.
        PluginError: that adapter, or what codes the delta, is not installed.

    """
    if (artifact.path / MANIFEST).is_file() and (wrong := problem(artifact.path)):
        raise GymError(f"the checkpoint is damaged: {wrong}", where=str(artifact.path), fix="name another one")
    if artifact.details.get("averaged"):
        raise GymError(
            "the optimizer averages: this checkpoint holds the weights that it trains, not those to use",
            where=str(artifact.path),
            fix="export the run; `train.load_best_model_at_end=true` makes that the best",
        )
    if "quantization" in artifact.details:
        raise GymError(
            "the model is quantized: there is nothing to merge, and its weights are codes",
            where=str(artifact.path),
            fix="use the directory as it is, or export the model that it was made from",
        )
    if artifact.kind == "model":
        return Full(
            None,
            mapped_weights.load(artifact.path, dtype=dtype, quantizer=quantizer, exact=exact),
            trained=lambda name: False,
        )
    if artifact.kind == "adapter" and artifact.kind not in artifact.details and is_peft(artifact.path):
        artifact = peft_artifact(artifact.path, artifact.base)
    maker = artifact.details.get(artifact.kind)
    if artifact.kind not in ("adapter", "delta") or not maker:
        raise GymError(f"this {artifact.kind} does not say what made it", where=str(artifact.path))
    if artifact.kind == "delta":
        return Full(None, with_delta(artifact, base_of(artifact), dtype, quantizer), trained=lambda name: False)
    cls = maker_of(artifact, "adapters", maker, "the adapter was made")
    if not any(artifact.path.glob("*.safetensors")):
        fix = "name a checkpoint, RUN/checkpoints/step-...; or train again with `train.overwrite=true`"
        raise GymError("the weights of the adapter are missing", where=str(artifact.path), fix=fix)
    changed = artifact.details.get("config", {})  # such as positions that were scaled for training
    quantizer = quantizer_of(artifact) or quantizer
    model = mapped_weights.load(base_of(artifact), changed, dtype=dtype, quantizer=quantizer, exact=exact)
    fit_vocabulary(model, artifact.path)
    stored = {name: weight.dtype for name, weight in model.named_parameters(remove_duplicate=False)}
    adapted = build_adapter(cls(**artifact.details.get("options", {})), model)
    adapted.load(adapted.read(artifact.path))
    for name, module in model.named_modules():
        if not exact and adapted.holds(module):  # no autocast brings what it computes in fp32 to the layers behind it
            module.to(dtype=next(dtype for weight, dtype in stored.items() if weight.startswith(f"{name}.")))
    for weight in model.parameters():
        mapped_weights.release(weight.detach())
    return adapted


def plain_model(artifact: Artifact, dtype: torch.dtype | str = "auto") -> Plain:
    """Return the plain model that an artifact stands for, its weights by their names in files of transformers.

    What an adapter changes is added in `dtype`; by default in the precision of the files of its base.

    An adapter is merged on the way, one layer at a time, and what was asked for is not kept: memory is that of the largest
    layer. This is what an exporter to another format is made of. Of a quantized model it is what was trained (`to_export`).

    Raises what `open_artifact` does, and GymError where the adapter cannot be merged or transformers has no such model.
    """
    whole = opened(to_export(artifact), dtype, exact=True)
    plain = whole.plain()
    model = skeleton(plain.config, built(plain.config, whole.task))
    plain.config.architectures = [type(model).__name__]
    own = weight_shards.own_weights(model)
    taken = ((name, weight.detach()) for name, weight in plain.weights if name in own)
    return Plain(plain.config, weight_shards.on_disk(model, taken))
