"""Looks into traced programs."""

import jax


def equations(jaxpr, within=()):
  """Pairs (equation, names of the primitives that it lies in), in depth.

  The outermost name comes first.
  """
  for equation in jaxpr.eqns:
    yield equation, within
    for inner in jax.core.jaxprs_in_params(equation.params):
      yield from equations(inner, (*within, equation.primitive.name))
