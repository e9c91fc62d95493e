"""Every rule again, slow and obvious, in fp64 with numpy, written from the papers. Nothing of the package is imported.

`x` is `[inputs, coordinates]`; `f` hostile inputs are expected.
"""

from __future__ import annotations

from itertools import chain
from math import acos, ceil, sin

import numpy as np


def mean(x, f=0):
    return sum(x) / len(x)


def task_arithmetic(x, f=0, scale=0.4):
    return scale * sum(x)


def slerp(x, f=0, t=0.5):
    a, b = x
    angle = acos(float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)))
    return sin((1 - t) * angle) / sin(angle) * a + sin(t * angle) / sin(angle) * b


def karcher(x, f=0, weights=None):
    """Downhill on the sphere, in small steps, of the mean square of the angles."""
    weights = np.array(weights or [1.0] * len(x)) / sum(weights or [1.0] * len(x))
    units = [row / np.linalg.norm(row) for row in x]
    point = units[0]
    for _ in range(400):
        slope = np.zeros_like(point)
        for unit, w in zip(units, weights, strict=True):
            across = unit - (unit @ point) * point
            size = np.linalg.norm(across)
            slope += w * np.arctan2(size, unit @ point) * across / size if size > 0 else 0
        point = point + slope / 2
        point = point / np.linalg.norm(point)
    return point * sum(w * np.linalg.norm(row) for row, w in zip(x, weights, strict=True))


def model_stock(x, f=0):
    n = len(x)
    unit = [v / np.linalg.norm(v) for v in x]
    cosine = np.mean([unit[i] @ unit[j] for i in range(n) for j in range(i)])
    t = n * cosine / (1 + (n - 1) * cosine)
    return t * mean(x)


def ties(x, f=0, density=0.2, weights=None, normalize=True, densities=None):
    """With weights as mergekit states them: of the sum that elects, and of the mean; each input may keep a share of its own."""
    weights = [1.0] * len(x) if weights is None else weights
    trimmed = []
    for row, share in zip(x, densities or [density] * len(x), strict=True):
        least = sorted(abs(row))[-max(1, int(share * x.shape[1]))]
        trimmed.append(np.where(abs(row) >= least, row, 0))
    return elected(trimmed, weights, normalize)


def elected(x, weights, normalize):
    found = np.zeros(len(x[0]))
    for j in range(len(x[0])):
        column = [(w * row[j], w) for row, w in zip(x, weights, strict=True)]
        sign = np.sign(sum(pushed for pushed, _ in column))
        agree = [(pushed, w) for pushed, w in column if pushed * sign > 0]
        total = sum(pushed for pushed, _ in agree)
        found[j] = (total / sum(w for _, w in agree) if normalize else total) if agree else 0
    return found


def sce(x, f=0, density=1.0):
    spread = x.var(0)
    kept = int(density * (spread > 0).sum()) if density < 1 else len(spread)
    chosen = np.argsort(-spread)[:kept]
    x = np.where(np.isin(np.arange(len(spread)), chosen), x, 0)
    weights = (x**2).sum(1) / (x**2).sum()
    found = np.zeros(len(spread))
    for j in range(len(spread)):
        agree = [(w, row[j]) for w, row in zip(weights, x, strict=True) if row[j] * x[:, j].sum() > 0]
        found[j] = sum(w * value for w, value in agree) / sum(w for w, _ in agree) if agree else 0
    return found


def breadcrumbs(x, f=0, top=0.01, bottom=0.85, scale=0.4, weights=None, densities=None):
    size = x.shape[1]
    kept = np.zeros_like(x)
    for i, row in enumerate(x):
        order = np.argsort(abs(row))
        most = max(size - int(top * size), int(densities[i] * size) if densities else 0)
        middle = order[most - int(densities[i] * size) if densities else int(bottom * size) : most]
        kept[i, middle] = row[middle]
    return scale * sum(w * row for w, row in zip(weights or [1.0] * len(x), kept, strict=True))


def thinned(x, draws, densities, epsilon=0.0):
    """DARE, and with `epsilon` DELLA, of what was drawn for each number."""
    kept = np.zeros_like(x)
    for i, row in enumerate(x):
        ranks = np.argsort(np.argsort(abs(row), kind="stable"), kind="stable")
        rates = 1 - densities[i] + epsilon / 2 - epsilon * ranks / (len(row) - 1)
        kept[i] = np.where(draws[i] >= rates, row / (1 - rates), 0)
    return kept


def squared(x):
    return np.array([[((a - b) ** 2).sum() for b in x] for a in x])


def krum_scores(x, neighbours):
    d = squared(x)
    return [sum(sorted(np.delete(d[i], i))[:neighbours]) for i in range(len(x))]


def krum(x, f):
    return x[int(np.argmin(krum_scores(x, len(x) - f - 2)))]


def multi_krum(x, f):
    best = np.argsort(krum_scores(x, len(x) - f - 2), kind="stable")[: len(x) - f]
    return mean(x[best])


def bulyan(x, f):
    left, chosen = list(x), []
    for _ in range(len(x) - 2 * f):
        scores = krum_scores(np.array(left), max(1, len(left) - f - 2)) if len(left) > 1 else [0.0]
        chosen.append(left.pop(int(np.argmin(scores))))
    chosen = np.array(chosen)
    middle = np.median(chosen, 0)
    found = np.zeros(x.shape[1])
    for j in range(x.shape[1]):
        near = sorted(chosen[:, j], key=lambda value: abs(value - middle[j]))
        found[j] = np.mean(near[: len(x) - 4 * f])
    return found


def trimmed_mean(x, f):
    return np.array([np.mean(sorted(column)[f : len(column) - f]) for column in x.T])


def median(x, f=0):
    return np.median(x, 0)


def meamed(x, f):
    middle, kept = np.median(x, 0), len(x) - f
    near = [sorted(column, key=lambda value, m=m: abs(value - m))[:kept] for column, m in zip(x.T, middle, strict=True)]
    return np.array([np.mean(values) for values in near])


def centered_clipping(x, f=0, tau=1.0, iterations=5):
    v = np.zeros(x.shape[1])
    for _ in range(iterations):
        v = v + mean([(row - v) * min(1, tau / np.linalg.norm(row - v)) for row in x])
    return v


def norm_bound(x, f=0, bound=1.0):
    return mean([row * min(1, bound / np.linalg.norm(row)) for row in x])


def fltrust(x, f=0):
    root, others = x[0], x[1:]
    length = np.linalg.norm(root)
    trust = [max(0, row @ root / np.linalg.norm(row) / length) for row in others]
    return sum(w * row * length / np.linalg.norm(row) for w, row in zip(trust, others, strict=True)) / sum(trust)


def sign_majority(x, f=0):
    return np.median([abs(row).mean() for row in x]) * np.sign(np.sign(x).sum(0))


def nnm(x, f):
    d = squared(x)
    near = [np.argsort(row, kind="stable")[: len(x) - f] for row in d]
    return np.array([mean(x[rows]) for rows in near])


def arc(x, f):
    n = len(x)
    cut = int(2 * f / n * (n - f))
    bound = sorted((np.linalg.norm(row) for row in x), reverse=True)[cut]
    return np.array([row * min(1, bound / np.linalg.norm(row)) for row in x])


def norm_cap(x, times=2.0):
    bound = times * np.median([np.linalg.norm(row) for row in x])
    return np.array([row * min(1, bound / np.linalg.norm(row)) for row in x])


def copies_once(x, f, radius=0.5):
    d = squared(x)
    usual = np.sort(d[np.triu_indices(len(x), 1)])[(len(x) * (len(x) - 1) // 2 - 1) // 2]
    groups = []
    for number in range(len(x)):
        joined = [group for group in groups if any(d[number, other] <= radius**2 * usual for other in group)]
        groups = [group for group in groups if group not in joined] + [[*chain(*joined), number]]
    return np.array([mean(x[group]) for group in groups]) if len(groups) > 2 * f else x


def byzantine_robust(x, f):
    return trimmed_mean(nnm(copies_once(norm_cap(x), f), f), f) if f else mean(norm_cap(x))


def buckets(count, size):
    return ceil(count / size)
