"""Ask the laws of engines of vLLM in this process, whose Python has vLLM: `python colocated_laws.py PACKAGES FOLDER`.

PACKAGES is where all else is, and comes second; FOLDER is for the model. All laws share one `LLM`, which stays awake.
"""

from __future__ import annotations

import os
import site
import sys
from pathlib import Path

if __name__ == "__main__":
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
    site.addsitedir(sys.argv[1])
    import vllm
    from gym_vllm_itself import Untied

    from gym_testkit.distribution import Brought
    from gym_testkit.laws import rollouts as laws
    from gym_vllm import Colocated, colocated

    class Engine(Colocated):
        """As small as it may be."""

        enable_sleep_mode: bool = False
        gpu_memory_utilization: float = 0.2
        max_model_len: int | None = 512
        dtype: str = "float32"

    bench = Untied(Path(sys.argv[2]))
    llm = vllm.LLM
    vllm.LLM = lambda **options: llm(enforce_eager=True, **options)  # to compile takes longer than to answer
    started = colocated.start(Engine(), bench.model())
    colocated.start = lambda *_: started
    for law in laws.laws.laws:
        law.check(Brought("rollouts", "vllm-colocated", Engine), bench)
        print(f"held: {law.text}", flush=True)
