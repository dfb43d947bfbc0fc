"""Gradients by central differences, in float64."""

import numpy as np


def central(function, x, step=1e-6):
  """The gradient of a function of an array, each number of it in turn."""
  x = np.array(x, np.float64)
  found = np.zeros_like(x)
  for place in np.ndindex(x.shape):
    ends = []
    for shift in (step, -step):
      moved = x.copy()
      moved[place] += shift
      ends.append(function(moved))
    found[place] = (ends[0] - ends[1]) / (2 * step)
  return found
