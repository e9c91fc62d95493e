"""Has torchvision imported, where it is installed, also beside a torch that it was not built for.

That of the package index is built for GPUs. Beside a torch for processors its compiled operators, such as those for boxes, are
not there, and it is not imported without their names. Videos need none of them.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

import torch

NAMES = ("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",)
if find_spec("torchvision"):
    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        LIBRARY = torch.library.Library("torchvision", "DEF")
        for name in (*NAMES, *(each.replace("nms", "qnms") for each in NAMES)):
            LIBRARY.define(name)
        import torchvision  # noqa: F401
