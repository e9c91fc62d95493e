"""(IA)3: factors of keys, values and hidden units."""

from __future__ import annotations

from typing import ClassVar

from gym_adapters.config.base import Names, PeftOptions, SomeNames


class IA3(PeftOptions):
    """Trains a factor for each key, each value, and each hidden unit of the feed-forward layers.

        y = l * (W x + bias)                      projections to keys and values, l `[out]` (section 3.3)
        y = W (l * x) + bias                      projections out of feed-forward layers (`feedforward_modules`), l `[in]`

    W and the bias stay as they are; l trains, and begins as ones.

    Trains: `out` numbers for a layer `[out, in]`, or `in` where its inputs are scaled.

    Code: peft's, which is right; the layers are found by what they are usually called (k_proj, value, down_proj, fc2, ...), not
    by the name of the family, of which peft knows some.

    Differs: from peft and the paper in nothing that is computed. `target_modules` and `feedforward_modules` may name other
    linear layers than those of the paper.

    On the disk: the factors by peft's names, which peft loads. Merges; left out, it leaves the base, so the base is its own
    reference.

    Not with: models whose keys and values have no projections by a name known here, unless `target_modules` names linear layers;
    GPT-2's layers; `feedforward_modules` that are not among `target_modules`; quantized weights, where it is merged.
    """

    target: ClassVar[str] = "gym_adapters.tuners.ia3:IA3Adapter"

    target_modules: SomeNames = "all"
    """Linear layers whose outputs are scaled; `all` is the projections to keys, to values, and out of the feed-forward layers."""
    feedforward_modules: Names = "all"
    """Feed-forward modules: those among `target_modules` whose inputs are scaled in place of the outputs; `all` is those out of
    the feed-forward layers."""
