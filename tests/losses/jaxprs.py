"""Looks into traced programs."""

import jax


def equations(jaxpr, within=()):
  """Every equation of a jaxpr and of those in it.

  Args:
    jaxpr: of a traced program.
    within: names of the primitives that it lies in, the outermost first.

  Yields:
    Pairs (equation, names of the primitives that it lies in).
  """
  for equation in jaxpr.eqns:
    yield equation, within
    for inner in jax.core.jaxprs_in_params(equation.params):
      yield from equations(inner, (*within, equation.primitive.name))
