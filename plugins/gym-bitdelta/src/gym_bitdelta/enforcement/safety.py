"""The safety threshold where a delta is written: prompts and judge of the options, and a fresh base for every scale."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from transformers import PreTrainedModel

from gym_bitdelta.config.base import DeltaOptions
from gym_bitdelta.delta.header import Zero
from gym_bitdelta.delta.records import Record
from gym_bitdelta.encoding import Encoder
from gym_bitdelta.enforcement.safe_lora import Alignment, project
from gym_bitdelta.models import Models
from gym_bitdelta.safety import probe
from gym_bitdelta.safety.gate import Gate, Probes
from gym_bitdelta.safety.prompts import Prompts, read
from gym_bitdelta.safety.scaling import scaled_record
from gym_bitdelta.safety.threshold import NOT_EVALUATED
from gym_core import Artifact, Run
from gym_data.kinds import Data
from gym_data.location import locate
from gym_data.tokenizer import Tokenizer
from gym_quant.post_training import calibration
from gym_quant.post_training.calibration import Rows
from gym_torch.checkpoints import load_delta
from gym_torch.console import say, warn
from gym_torch.kinds import part
from gym_torch.model import fingerprint

Records = Mapping[str, Record]


class Safety:
    """Holds a delta to its threshold. Without prompts it measures nothing, and says so."""

    def __init__(self, options: DeltaOptions, run: Run, artifact: Artifact, base: Path) -> None:
        """Read the prompts. Raises GymError where there are too few, before any work."""
        self._options, self._run, self._base, self._seed = options, run, base, run.recipe.train.seed
        self._gate: Gate[PreTrainedModel] | None = None
        self._prompts: Prompts | None = None
        self._open = ExitStack()
        if options.safety_prompts is None:
            return
        options.safety_judge.check()
        self._prompts = read(options.safety_prompts, options.safety_wanted, self._seed)
        self._tokenizer = Tokenizer(artifact.path if (artifact.path / "tokenizer.json").is_file() else base)

    def __enter__(self) -> Self:
        """Hold what the judge needs until the block ends."""
        return self

    def __exit__(self, *raised: object) -> None:
        """End the processes of the judge."""
        self._open.close()

    @property
    def asks(self) -> bool:
        """Whether there are prompts, so that models compute."""
        return self._prompts is not None

    @property
    def identity(self) -> Any:
        """What decides the outcome beside the options: what the prompts say, the judge with its files, the unaligned model."""
        if self._prompts is None:
            return None
        return [
            self._prompts.sha256,
            probe.judge_identity(self._options),
            self._unaligned and fingerprint.of_model(self._unaligned),
        ]

    @property
    def teacher_harms(self) -> bool:
        """Whether the fine-tune was measured to be riskier than its base: distilling from it gives the risk back."""
        return self._gate is not None and self._gate.risk_added

    def measure(self, models: Models, holdout: Rows | None) -> None:
        """Measure the base and the fine-tune. `holdout` says how useful they are.

        Prompts that training saw are left out. Raises GymError where too few remain, or a model or the judge fails.
        """
        if self._prompts is None:
            return
        self._prompts = self._prompts.unseen(self._options.safety_wanted, self._trained_on())
        answers = probe.Answers(self._tokenizer, self._options.safety_max_new_tokens)
        judge = self._open.enter_context(closing(probe.RewardJudge(self._options)))
        utility = probe.likelihood(holdout) if holdout is not None else None
        probes = Probes(self._prompts.found, answers, judge, utility)
        self._gate = Gate(models.base, models.tuned, probes, self._options.safety_wanted)

    def enforce(self, records: Records, encoder: Encoder, models: Models) -> tuple[Records, Any]:
        """Return the records to write, scaled where they must be, and what was measured.

        `encoder` knows what the fine-tune changed. Raises GymError with the figures where no scale holds the threshold.
        """
        if self._gate is None:
            _tell_not_evaluated(self._options)
            return records, NOT_EVALUATED
        layers: list[dict[str, Any]] = []
        if self._unaligned and self._options.safety_asked and not self._gate.holds(_model(records, models)):
            count = self._gate.search.count
            records, layers = project(
                self._options,
                records,
                encoder,
                Alignment(self._unaligned, self._base),
                lambda tried: count(_model(tried, models)).rate.value,
            )
        verdict = self._gate.verdict(lru_cache(1)(lambda scale: _model(_scaled(records, scale), models)))
        assert self._prompts is not None and isinstance(verdict.evidence, dict)
        evidence = verdict.evidence | {
            "prompts": verdict.evidence["prompts"]
            | {
                "sha256": self._prompts.sha256,
                "duplicates": self._prompts.duplicates,
                "in_training_data": self._prompts.trained,
            },
            "seed": self._seed,
            "judge": probe.judge_identity(self._options),
            "max_new_tokens": self._options.safety_max_new_tokens,
            "projected": layers,
        }
        for warning in verdict.warnings:
            warn(f"safety: {warning}")
        verdict.check()
        say(f"safety: {evidence['summary']}")
        delivered = _scaled(records, verdict.scale)
        if verdict.scale != 1 or layers:
            encoder.measure(delivered)
        return delivered, evidence

    def _trained_on(self) -> Iterator[str] | None:
        """Return the texts of the samples that the run trains on; None where its recipe names no data."""
        data = part(self._run.recipe, Data)
        if data is None:
            return None
        train, tokenizer = calibration.prepared(data, self._run, self._base).train, Tokenizer(self._base)
        return (tokenizer.decode(train[place].tokens) for place in range(len(train)))

    @property
    def _unaligned(self) -> Path | None:
        named = self._options.safety_unaligned
        return locate(named) if named else None


def _model(records: Records, models: Models) -> PreTrainedModel:
    """Return the base with these changes: what was added before leaves no rounding behind."""
    model = models.again()
    load_delta.add(model, ((name, record.values()) for name, record in records.items() if _changes(record)))
    return model


def _scaled(records: Records, scale: float) -> Records:
    """Return records whose change is `scale` times as large; at 1 they are the very ones."""
    return records if scale == 1 else {name: scaled_record(record, scale) for name, record in records.items()}


def _changes(record: Record) -> bool:
    return not isinstance(record.entry, Zero)


def _tell_not_evaluated(options: DeltaOptions) -> None:
    if options.safety_threshold is None:
        say(f"safety: {NOT_EVALUATED}, for there are no `safety_prompts`")
    else:
        warn(
            f"safety: {NOT_EVALUATED}: `safety_threshold` {options.safety_threshold:g} is not enforced, for there are no "
            "`safety_prompts` to measure it on"
        )
