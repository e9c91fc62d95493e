"""The engine that every installation has: the generator of gym-torch over the weights that are trained."""

from __future__ import annotations

from gym_data.tokenizer import Tokenizer
from gym_rl.config.local_engine import LocalEngineConfig
from gym_rl.rollout_engine import RolloutRequest
from gym_torch.generation.generator import Generator
from gym_torch.generation.prefix_cache import PrefixCache
from gym_torch.generation.row import Completion
from gym_torch.model.adapted import AdaptedModel
from gym_torch.model.expert_routing import Routers
from gym_torch.model.layout_support import miniature_support
from gym_torch.packing import ALONE
from gym_torch.rounding import rounding


class LocalEngine:
    """Generates in the precision that is trained in.

    In fp32 its log-probabilities are the trainer's, unless those of a token follow from the length of the whole text, which
    is not known when the token is sampled.
    """

    def __init__(
        self,
        config: LocalEngineConfig,
        *,
        adapted: AdaptedModel,
        tokenizer: Tokenizer,
        precision: str,
        routers: Routers | None = None,
        **_: object,
    ) -> None:
        """Use the model as it is at each call."""
        self.generator = Generator(adapted.model, tokenizer, config.max_batch, routers)
        self.prefix_cache_bytes = config.prefix_cache_bytes
        self.precision = precision
        self.exact = precision == "fp32" and miniature_support(adapted.model, None, packs=False).layout is not ALONE

    def refresh(self) -> None:
        """Do nothing: the weights are the trainer's own."""

    def generate(self, request: RolloutRequest) -> list[Completion]:
        """Return the completions: see `gym_torch.generation.generator.Generator.generate`."""
        device, options = self.generator.model.device, dict(vars(request))
        options["max_new_tokens"], turns = options.pop("limits"), options.pop("turns")
        if further := options.pop("ends"):
            options["stop_ids"] = {*self.generator.stop_ids, *further}
        if turns is not None and self.prefix_cache_bytes:
            options["prefixes"] = turns.setdefault("prefixes", PrefixCache(self.prefix_cache_bytes))
        with rounding(device, self.precision):
            return self.generator.generate(**options)

    def close(self) -> None:
        """Do nothing."""
