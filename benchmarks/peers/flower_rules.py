"""Times rules of Flower on the rows of a file of numpy, in an environment of its own; prints one object of seconds by rule.

What came of them goes into another file of numpy.
"""

import json
import os
import sys
import time

import numpy as np

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
from flwr.server.strategy import aggregate as rules

values, hostile = np.load(sys.argv[1]), int(sys.argv[2])
results = [([row], 1) for row in values]
works = {
    "mean": lambda: rules.aggregate(results),
    "trimmed mean": lambda: rules.aggregate_trimmed_avg(results, hostile / len(values)),
    "median": lambda: rules.aggregate_median(results),
    "krum": lambda: rules.aggregate_krum(results, hostile, 0),
}
seconds, found = {}, {}
for name, work in works.items():
    runs = []
    for _ in range(3):
        began = time.perf_counter()
        found[name] = work()[0]
        runs.append(time.perf_counter() - began)
    seconds[name] = min(runs)
np.savez(sys.argv[3], **found)
print(json.dumps(seconds))
