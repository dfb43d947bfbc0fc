"""The cost of deep encoders, extrapolated from shallow ones."""

from collections.abc import Callable, Collection, Iterator, Mapping
import dataclasses
from typing import Any

from flax import linen as nn

from dualenc_jax.forecast.program import Forecast, Sent
from dualenc_jax.training.experiment import Experiment

# Layers of an encoder that are compiled; those of deeper ones are alike.
_COMPILED = 2


def of_all(
    experiment: Experiment,
    measured: Callable[[Experiment], Forecast],
    inputs: Mapping[str, int],
    whole: bool = False,
    shared: Collection[str] = (),
) -> Forecast:
  """The forecast of a program of encoders, by few of their layers.

  Layers of one encoder are alike. So deep encoders are compiled with two
  layers, and each of them once more with one: the difference is the cost of a
  layer.

  Args:
    experiment: with all layers.
    measured: compiles the program.
    inputs: bytes of its inputs by name, which need no compiler.
    whole: compiles all layers.
    shared: names of parts that one layer after the other uses.
  """
  deep = [] if whole else _deep_encoders(experiment.objective)
  if not deep:
    return measured(experiment)
  few = {encoder: _COMPILED for encoder in deep}
  base = measured(_with_layers(experiment, few))
  total = base
  for encoder in deep:
    less = measured(_with_layers(experiment, few | {encoder: _COMPILED - 1}))
    total = _plus(total, base, less, encoder.num_layers - _COMPILED)
  once = {part: base.parts[part] for part in shared}
  parts = {**total.parts, **inputs, **once}
  return Forecast(parts, total.sent, _COMPILED)


def _plus(
    total: Forecast, base: Forecast, less: Forecast, layers: int
) -> Forecast:
  """`total` with more layers, each the difference of `base` and `less`."""

  def more(total: float, base: float, less: float) -> float:
    return total + layers * max(base - less, 0)

  parts = {
      part: int(more(total.parts[part], size, less.parts[part]))
      for part, size in base.parts.items()
  }
  sent = {
      kind: Sent(*map(
          more, total.sent[kind], each, less.sent.get(kind, Sent())
      ))
      for kind, each in base.sent.items()
  }
  return Forecast(parts, sent)


def _deep_encoders(tree: Any) -> list[Any]:
  """The different encoders of more layers than are compiled."""
  found: list[Any] = []
  for encoder in _encoders(tree):
    if encoder.num_layers > _COMPILED and encoder not in found:
      found.append(encoder)
  return found


def _encoders(tree: Any) -> Iterator[Any]:
  if isinstance(tree, nn.Module) and hasattr(tree, 'num_layers'):
    if not getattr(tree, 'scan_layers', False):
      yield tree
  elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
    for field in dataclasses.fields(tree):
      if field.init and field.name not in ('parent', 'name'):
        yield from _encoders(getattr(tree, field.name))


def _with_layers(
    experiment: Experiment, layers: Mapping[nn.Module, int]
) -> Experiment:

  def changed(tree: Any) -> Any:
    if isinstance(tree, nn.Module) and hasattr(tree, 'num_layers'):
      return tree.clone(num_layers=layers[tree]) if tree in layers else tree
    if not dataclasses.is_dataclass(tree) or isinstance(tree, type):
      return tree
    values = {
        field.name: changed(getattr(tree, field.name))
        for field in dataclasses.fields(tree)
        if field.init and field.name not in ('parent', 'name')
    }
    old = {name: getattr(tree, name) for name in values}
    differ = {n: v for n, v in values.items() if v is not old[n]}
    if not differ:
      return tree
    if isinstance(tree, nn.Module):
      return tree.clone(**differ)
    return dataclasses.replace(tree, **differ)

  return dataclasses.replace(
      experiment, objective=changed(experiment.objective)
  )
