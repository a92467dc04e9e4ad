"""What TopK means."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def first_in_order(data: Array, count: int, axis: int, largest: int) -> tuple[Array, Array]:
    """Values and places, by sorting everything: not-a-numbers are the greatest, ties in order."""
    rows = np.moveaxis(data, axis, -1).astype(np.float64)
    places = np.empty((*rows.shape[:-1], count), np.int64)
    for row in np.ndindex(*rows.shape[:-1]):
        values = [
            (int(np.isnan(v)), np.nan_to_num(v, nan=0.0, posinf=9e9, neginf=-9e9))
            for v in rows[row]
        ]
        signs = [(-a, -b) for a, b in values] if largest else values
        places[row] = sorted(range(len(values)), key=signs.__getitem__)[:count]
    found = np.take_along_axis(np.moveaxis(data, axis, -1), places, -1)
    return np.moveaxis(found, -1, axis), np.moveaxis(places, -1, axis)
