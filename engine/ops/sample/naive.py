"""Sampling one row with Python lists, in the order the contract states."""

from __future__ import annotations

import math


def argmax(logits: list[float]) -> int:
    return max(range(len(logits)), key=lambda i: (logits[i], -i))


def draw(logits: list[float], uniform: float, temperature: float, top_k: int, top_p: float, min_p: float) -> int:
    """One id; float64 throughout."""
    peak = max(logits)
    weight = [math.exp((x - peak) / temperature) for x in logits]
    total = sum(weight)
    probability = [w / total for w in weight]
    floor = min_p * max(probability)
    kept = [i for i in range(len(logits)) if probability[i] >= floor]
    kept.sort(key=lambda i: (-probability[i], i))
    if top_k > 0:
        kept = kept[:top_k]
    mass = sum(probability[i] for i in kept)
    nucleus: list[int] = []
    reached = 0.0
    for i in kept:
        if nucleus and reached >= top_p * mass:
            break
        nucleus.append(i)
        reached += probability[i]
    nucleus.sort()
    target = uniform * sum(probability[i] for i in nucleus)
    cumulative = 0.0
    for i in nucleus:
        cumulative += probability[i]
        if cumulative > target:
            return i
    return nucleus[-1]
