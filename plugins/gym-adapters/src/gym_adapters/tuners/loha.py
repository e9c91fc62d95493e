"""LoHa through peft, which is right (arXiv:2108.06098)."""

from __future__ import annotations

from peft import LoHaConfig, PeftConfig

from gym_adapters.config.loha import LoHa
from gym_adapters.lycoris_base import LycorisAdapter


class LoHaAdapter(LycorisAdapter[LoHa]):
    """`W + (alpha / rank) (B1 A1) * (B2 A2)`, element-wise (FedPara, arXiv:2108.06098, section 2.2); A2 is zero at first."""

    def peft_config(self, target_modules: list[str], modules_to_save: list[str] | None) -> PeftConfig:
        """Return the options of LoHa."""
        rank = self.config.rank
        return LoHaConfig(
            r=rank,
            alpha=self.config.alpha or rank,
            target_modules=target_modules,
            modules_to_save=modules_to_save,
            task_type="CAUSAL_LM",
        )
