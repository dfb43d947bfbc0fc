"""The part of T5X's interface that the bridge touches, where T5X is absent.

T5X is on no package index; `test_t5x_trainer` runs under the real one.
"""

import sys
import types
from typing import Any

from clu import metrics
import jax.numpy as jnp


class BaseTransformerModel:
  """As `t5x.models.BaseTransformerModel`."""

  def __init__(
      self, module, input_vocabulary, output_vocabulary, optimizer_def
  ):
    self.module = module
    self.input_vocabulary = input_vocabulary
    self.output_vocabulary = output_vocabulary
    self.optimizer_def = optimizer_def

  def eval_fn(self, params, batch):
    return self.loss_fn(params, batch, None)


class Rate:
  """As `TimeRate` and `StepsPerTime`, but for the time."""

  @staticmethod
  def from_model_output(value=1.0):
    return metrics.Average.from_model_output(jnp.asarray([value], jnp.float32))


def install() -> None:
  """Makes `import t5x` find the above."""
  parts = {
      'models': {'BaseTransformerModel': BaseTransformerModel},
      'metrics': {'TimeRate': Rate, 'StepsPerTime': Rate},
      'optimizers': {'OptimizerDefType': Any},
  }
  package = sys.modules['t5x'] = types.ModuleType('t5x')
  for name, members in parts.items():
    module = sys.modules[f't5x.{name}'] = types.ModuleType(f't5x.{name}')
    vars(module).update(members)
    setattr(package, name, module)
