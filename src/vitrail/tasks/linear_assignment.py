"""The assignment of rows to columns with the smallest sum of costs (Kuhn 1955), exact, by shortest augmenting paths (Jonker and
Volgenant 1987). n rows, m columns."""

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray


def assign(costs: Float[ndarray, "n m"]) -> tuple[Int[ndarray, " pairs"], Int[ndarray, " pairs"]]:
    """Return rows in rising order and the column of each, as many pairs as the shorter side has; costs that are not finite
    count as larger than all others."""
    if costs.shape[0] > costs.shape[1]:
        columns, rows = assign(costs.T)
        order = np.argsort(rows)
        return rows[order], columns[order]
    columns = _assign_rows(_finite(costs))
    return np.arange(len(columns)), columns


def _finite(costs: Float[ndarray, "n m"]) -> Float[ndarray, "n m"]:
    """Replace what is not finite by a number that is larger than the sum of all that is."""
    finite = np.isfinite(costs)
    values = costs.astype(np.float64)
    return values if finite.all() else np.where(finite, values, np.abs(values[finite]).sum() + 1)


def _assign_rows(costs: Float[ndarray, "n m"]) -> Int[ndarray, " n"]:
    """Return the column of each row, of which there are at most as many as columns."""
    rows, columns = costs.shape
    row_price, column_price = np.zeros(rows), np.zeros(columns)  # of a pair that is assigned, they sum to its cost
    row_of = np.full(columns, -1)
    for start in range(rows):
        distance, previous = np.full(columns, np.inf), np.full(columns, -1)  # of the shortest path to each column
        reached = np.zeros(columns, dtype=bool)
        row, column, length = start, -1, 0.0
        while row >= 0:
            through = length + costs[row] - row_price[row] - column_price
            shorter = ~reached & (through < distance)
            distance[shorter], previous[shorter] = through[shorter], column
            column = int(np.where(reached, np.inf, distance).argmin())
            length, reached[column], row = distance[column], True, row_of[column]
        slack = length - distance[reached]
        row_price[start] += length
        assigned = row_of[reached]
        row_price[assigned[assigned >= 0]] += slack[assigned >= 0]
        column_price[reached] -= slack
        while column >= 0:  # along the path, every column passes to the row before it
            before = previous[column]
            row_of[column] = start if before < 0 else row_of[before]
            column = before
    result = np.empty(rows, dtype=np.int64)
    result[row_of[row_of >= 0]] = np.flatnonzero(row_of >= 0)
    return result
