"""Compressed deltas, unpacked into a file beside the result: they come weight by weight, and a merge reads them several times."""

from __future__ import annotations

from pathlib import Path

from gym_core import Artifact
from gym_deltasoup.sources.tensor_slices import Stored
from gym_optim.promises import promised
from gym_torch.checkpoints.load_delta import DeltaCodec
from gym_torch.checkpoints.weight_shards import pieces
from gym_torch.recorded_components import maker_of


def spool(artifact: Artifact, base: Path, into: Path) -> dict[str, Stored]:
    """Write the changes of a delta in fp32 to a new file, one weight after another, and return where each lies.

    Raises what `DeltaCodec.changes` raises, for a damaged file or another base, and PluginError where its codec is not installed.
    """
    cls = maker_of(artifact, "quantizers", artifact.details["delta"], "the delta was made")
    options = cls(**artifact.details.get("options", {}))
    codec = promised(options.build(), DeltaCodec, options, "quantization")  # type: ignore[type-abstract]
    found: dict[str, Stored] = {}
    with into.open("wb") as file:
        for name, change in codec.changes(artifact, base):
            numbers = change.float()
            found[name] = Stored(into, file.tell(), numbers.dtype, tuple(numbers.shape))
            for piece in pieces(numbers):
                file.write(piece)
    return found
