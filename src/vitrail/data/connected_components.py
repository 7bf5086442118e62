"""Connected components of a mask: the pieces of each class. h high, w wide, n runs, e edges. Torch-free."""

import numpy as np
from jaxtyping import Bool, Int, Int32
from numpy import ndarray


def connected_components(mask: Int[ndarray, "h w"], counted: Bool[ndarray, "h w"] | None = None) -> Int32[ndarray, "h w"]:
    """Number the components of equal values from 1, in the order of their first pixels; 0 where nothing is counted.

    Pixels that touch at a corner are connected. Runs of a row are connected with those of the next one, not pixel by pixel.
    """
    if not mask.size:
        return np.zeros(mask.shape, np.int32)
    begins = np.ones(mask.shape, bool)
    begins[:, 1:] = mask[:, 1:] != mask[:, :-1]
    if counted is not None:
        begins[:, 1:] |= counted[:, 1:] != counted[:, :-1]
    run = np.cumsum(begins.ravel(), dtype=np.int32).reshape(mask.shape) - 1
    root = _connect(int(run[-1, -1]) + 1, _vertical_edges(mask, run, begins, counted))
    is_counted = np.ones(len(root), bool) if counted is None else counted[begins]
    numbers = np.searchsorted(np.unique(root[is_counted]), root) + 1
    return np.where(is_counted, numbers, 0).astype(np.int32)[run]


def _vertical_edges(
    mask: Int[ndarray, "h w"],
    run: Int[ndarray, "h w"],
    begins: Bool[ndarray, "h w"],
    counted: Bool[ndarray, "h w"] | None,
) -> Int[ndarray, "e 2"]:
    """Return pairs of runs of equal values in neighbouring rows that touch."""
    edges, width = [], mask.shape[1]
    for shift in (-1, 0, 1):
        upper = slice(max(-shift, 0), width - max(shift, 0))
        lower = slice(max(shift, 0), width - max(-shift, 0))
        same = mask[:-1, upper] == mask[1:, lower]
        if counted is not None:
            same &= counted[:-1, upper] & counted[1:, lower]
        same &= begins[:-1, upper] | begins[1:, lower]  # two runs touch first where one of them begins
        edges.append(np.stack([run[:-1, upper][same], run[1:, lower][same]], axis=1))
    return np.concatenate(edges)


def _connect(num_nodes: int, edges: Int[ndarray, "e 2"]) -> Int[ndarray, " n"]:
    """Return the lowest node that each one is connected with."""
    root = np.arange(num_nodes)
    while len(edges):
        first, second = root[edges[:, 0]], root[edges[:, 1]]
        differs = first != second
        edges, first, second = edges[differs], first[differs], second[differs]
        np.minimum.at(root, np.maximum(first, second), np.minimum(first, second))
        while (root[root] != root).any():
            root = root[root]
    return root
