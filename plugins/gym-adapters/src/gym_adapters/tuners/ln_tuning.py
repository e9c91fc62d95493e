"""LN-tuning through peft (arXiv:2312.11420), which is right once it is told which layers."""

from __future__ import annotations

from peft import LNTuningConfig, PeftConfig
from transformers import PreTrainedModel

from gym_adapters.config.ln_tuning import LNTuning
from gym_adapters.peft_base import PeftAdapter
from gym_adapters.target_modules import norm_paths


class LNTuningAdapter(PeftAdapter[LNTuning]):
    """Normalization layers are copied and the copies train (arXiv:2312.11420, section 2); merging puts the copies in place."""

    def matching(self, model: PreTrainedModel) -> list[str]:
        """Return the paths of the normalization layers that the model calls."""
        unfit = self.unfit(model)
        return [path for path in norm_paths(model) if path not in unfit]

    def all_modules(self, model: PreTrainedModel) -> list[str]:
        """Return all of these."""
        return self.matching(model)

    def peft_config(self, target_modules: list[str], modules_to_save: list[str] | None) -> PeftConfig:
        """Return the options of LN-tuning."""
        return LNTuningConfig(target_modules=target_modules, modules_to_save=modules_to_save, task_type="CAUSAL_LM")
