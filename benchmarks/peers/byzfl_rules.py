"""Times rules of ByzFL on the rows of a file of numpy, in an environment of its own; prints one object of seconds by rule."""

import json
import sys
import time
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import numpy as np

package = ModuleType("byzfl")  # without the rest of it, which asks for a torchvision built like the torch at hand
package.__path__ = list(find_spec("byzfl").submodule_search_locations)
sys.modules["byzfl"] = package
rules = import_module("byzfl.aggregators.aggregators")
before = import_module("byzfl.aggregators.preaggregators")
values, hostile = np.load(sys.argv[1]), int(sys.argv[2])
works = {
    "trimmed mean": rules.TrMean(hostile),
    "median": rules.Median(),
    "krum": rules.Krum(hostile),
    "nnm, trimmed mean": lambda x: rules.TrMean(hostile)(before.NNM(hostile)(x)),
}
found = {}
for name, work in works.items():
    runs = []
    for _ in range(3):
        began = time.perf_counter()
        work(values)
        runs.append(time.perf_counter() - began)
    found[name] = min(runs)
print(json.dumps(found))
