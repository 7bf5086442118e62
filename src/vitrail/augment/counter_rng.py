"""Counter-based random numbers: a pure function that hashes (seed, epoch, index, slot), without any state.

A sample's numbers can be computed alone, in any order, on any rank or for a whole batch at once, and are the same on every
machine and with every version of numpy. The hash is SplitMix64 (Steele, Lea and Flood 2014), once for each part of the key.
"""

import numpy as np
from numpy import ndarray

GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def uniforms(seed: int, epoch: int | ndarray, index: int | ndarray, slots: int, first_slot: int = 0) -> ndarray:
    """Draw float64 numbers from [0, 1): (slots,) for one sample, (n, slots) for n samples, starting at ``first_slot``."""
    return (random_bits(seed, epoch, index, np.arange(first_slot, first_slot + slots)) >> np.uint64(11)) * 2.0**-53


def permutation(seed: int, epoch: int, length: int) -> ndarray:
    """Draw a permutation of ``range(length)`` for this epoch."""
    return np.argsort(random_bits(seed, epoch, np.arange(length), 2**32).reshape(-1), kind="stable")


def random_bits(seed: int, epoch: int | ndarray, index: int | ndarray, slots: int | ndarray) -> ndarray:
    """Draw 64 random bits per slot; the last axis is the slot, the axes before it are those of epoch and index."""
    key = _splitmix64(np.uint64(seed % 2**64))
    key = _splitmix64(key ^ np.asarray(epoch).astype(np.uint64))
    key = _splitmix64(key ^ np.asarray(index).astype(np.uint64))
    return _splitmix64(key[..., None] + np.asarray(slots, dtype=np.uint64) * GOLDEN_GAMMA)


def normals(key: np.uint64, count: int) -> ndarray:
    """Draw float32 normal numbers by Box and Muller (1958): the two halves of a hash give two of them."""
    hashed = random_bits(0, 0, np.asarray(key), np.arange((count + 1) // 2)).view(np.uint32).astype(np.float32).reshape(-1, 2)
    radius = np.sqrt(-2 * np.log((hashed[:, 0] + 1) * np.float32(2.0**-32)))  # plus one avoids the logarithm of zero
    angle = hashed[:, 1] * np.float32(2 * np.pi * 2.0**-32)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def _splitmix64(key: ndarray | np.uint64) -> ndarray:
    with np.errstate(over="ignore"):
        state: ndarray = np.asarray(key, dtype=np.uint64) + GOLDEN_GAMMA
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(state ^ (state >> np.uint64(31)))
