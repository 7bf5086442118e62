"""Chance as a pure function: a number is drawn by hashing (seed, epoch, index, slot), so nothing has a state.

Any sample's numbers can be had alone, in any order, on any rank and for a whole batch at once, and they are the same on every
machine and for every version of numpy. The hash is SplitMix64 (Steele, Lea and Flood 2014), once for each part of the key.
"""

import numpy as np
from numpy import ndarray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniforms(seed: int, epoch: int | ndarray, index: int | ndarray, slots: int, first: int = 0) -> ndarray:
    """Numbers from [0, 1) in double precision: (slots,) for one sample, (n, slots) for n of them, from the first slot on."""
    return (bits(seed, epoch, index, np.arange(first, first + slots)) >> np.uint64(11)) * 2.0**-53


def permutation(seed: int, epoch: int, length: int) -> ndarray:
    """All numbers below ``length`` in an order drawn for this epoch."""
    return np.argsort(bits(seed, epoch, np.arange(length), 2**32).reshape(-1), kind="stable")


def bits(seed: int, epoch: int | ndarray, index: int | ndarray, slots: int | ndarray) -> ndarray:
    """64 bits a slot: the last axis is the slots', the ones before it those of epoch and index."""
    key = _mix(np.uint64(seed % 2**64))
    key = _mix(key ^ np.asarray(epoch).astype(np.uint64))
    key = _mix(key ^ np.asarray(index).astype(np.uint64))
    return _mix(key[..., None] + np.asarray(slots, dtype=np.uint64) * GOLDEN)


def normals(key: np.uint64, count: int) -> ndarray:
    """Box and Muller (1958): two uniform numbers, the halves of one hash, make two normal ones; float32."""
    hashed = bits(0, 0, np.asarray(key), np.arange((count + 1) // 2)).view(np.uint32).astype(np.float32).reshape(-1, 2)
    radius = np.sqrt(-2 * np.log((hashed[:, 0] + 1) * np.float32(2.0**-32)))  # plus one: no logarithm of zero
    angle = hashed[:, 1] * np.float32(2 * np.pi * 2.0**-32)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def _mix(key: ndarray | np.uint64) -> ndarray:
    with np.errstate(over="ignore"):
        state: ndarray = np.asarray(key, dtype=np.uint64) + GOLDEN
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(state ^ (state >> np.uint64(31)))
