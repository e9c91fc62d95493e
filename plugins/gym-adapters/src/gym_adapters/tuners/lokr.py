"""LoKr through peft, which is right (arXiv:2309.14859)."""

from __future__ import annotations

from peft import LoKrConfig, PeftConfig

from gym_adapters.config.lokr import LoKr
from gym_adapters.lycoris_base import LycorisAdapter


class LoKrAdapter(LycorisAdapter[LoKr]):
    """`W + (alpha / rank) C (x) (B A)`, a Kronecker product (LyCORIS, arXiv:2309.14859, section 3.4); C is zero at first."""

    def peft_config(self, target_modules: list[str], modules_to_save: list[str] | None) -> PeftConfig:
        """Return the options of LoKr."""
        rank = self.config.rank
        return LoKrConfig(
            r=rank,
            alpha=self.config.alpha or rank,
            decompose_factor=self.config.decompose_factor,
            decompose_both=self.config.decompose_both,
            target_modules=target_modules,
            modules_to_save=modules_to_save,
            task_type="CAUSAL_LM",
        )
