"""A run, planned: shapes, shardings and compiled functions, no numbers yet."""

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
import numpy as np

from dualenc_jax.data import batches as batches_lib
from dualenc_jax.data.layouts.layout import Padded, padded_shape
from dualenc_jax.errors import UserError
from dualenc_jax.inference.embedder import Embedder
from dualenc_jax.objectives import embedding
from dualenc_jax.parallel import micro_batches, rules
from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.run.experiment import Experiment
from dualenc_jax.training import checkpoints, initial, step as step_lib


@dataclasses.dataclass(frozen=True)
class Plan:
  """What `make_plan` works out.

  Attributes:
    partitioner: the mesh.
    abstract: the train state as ShapeDtypeStruct with shardings.
    shardings: its shardings.
    init: makes the initial state on the mesh.
    train_step: (state, batch) -> (state, metrics); donates the state.
  """

  partitioner: Partitioner
  abstract: step_lib.TrainState
  shardings: step_lib.TrainState
  init: Callable[[], step_lib.TrainState]
  train_step: Callable[..., Any]


def make_plan(experiment: Experiment) -> Plan:
  """Checks the model against the mesh and traces its parameters.

  Raises:
    UserError: sizes that do not divide, rules that match nothing.
  """
  partitioner = experiment.partitioner
  check_heads(experiment)
  abstract, shardings, init, transform = step_lib.make_init(
      experiment.model,
      experiment.loss,
      experiment.similarity,
      experiment.optimizer,
      partitioner,
      experiment.seed,
  )
  return Plan(
      partitioner,
      checkpoints.with_shardings(abstract, shardings),
      shardings,
      init,
      step_lib.make_train_step(
          experiment.model,
          experiment.loss,
          experiment.similarity,
          experiment.optimizer.learning_rate,
          transform,
          partitioner,
          shardings,
          experiment.seed,
          experiment.micro_batch_size,
      ),
  )


def check_batch(experiment: Experiment) -> None:
  """Raises UserError unless the batch divides among the devices.

  Only training needs that: a model is evaluated on whatever mesh there is.
  """
  size, micro = experiment.batch_size, experiment.micro_batch_size
  experiment.partitioner.check_batch_size('BATCH_SIZE', size)
  if micro is not None:
    micro_batches.check_size(micro, size)
    experiment.partitioner.check_batch_size('MICRO_BATCH_SIZE', micro)


def check_heads(experiment: Experiment) -> None:
  """The model axis splits attention by heads, so it divides their number."""
  devices = experiment.partitioner.mesh.shape['model']
  for name in ('encoder', 'passage_encoder'):
    encoder = getattr(experiment.model, name)
    if encoder is not None and encoder.num_heads % devices:
      raise UserError(
          f'{name} has {encoder.num_heads} heads, which the {devices} devices'
          ' on the model axis do not divide. Set MODEL_PARALLEL to a divisor of'
          f' {encoder.num_heads}.'
      )


def make_embedder(plan: Plan, experiment: Experiment) -> Embedder:
  """Encodes with the parameters of a train state, those of the loss aside."""
  return Embedder(
      experiment.model,
      plan.partitioner,
      embedding.model_params(plan.shardings.params),
      experiment.eval_batch_size,
  )


def make_start(plan: Plan, experiment: Experiment) -> initial.Start | None:
  """What a run without a checkpoint of its own starts from; None: scratch."""
  source = experiment.initial_checkpoint
  if source is None or getattr(source, 'path', source) is None:
    return None
  return initial.plan_start(
      source,
      experiment.model,
      experiment.tokenizer.vocabulary,
      plan.abstract.params,
  )


def param_paths(plan: Plan) -> list[str]:
  """Paths of the parameters, in the order of the step's gradients."""
  return rules.leaf_paths(plan.abstract.params)


def count_params(plan: Plan) -> int:
  """Numbers in all trained and frozen parameters."""
  leaves = jax.tree.leaves(plan.abstract.params)
  return sum(int(np.prod(leaf.shape)) for leaf in leaves)


def abstract_batch(experiment: Experiment) -> dict[str, Any]:
  """The shapes of a global batch, with room for all but the rarest texts.

  Of the shapes of a layout it is the second: a batch that it does not hold, and
  which is padded more, or altogether, comes once in a very long run.
  Those of the padded layout are known; for others the examples are looked at,
  and tokenised first if they are not yet.
  """
  size, cells = experiment.batch_size, experiment.cells
  pairs, k = size // cells, experiment.num_negatives
  if isinstance(experiment.layout, Padded):
    tokenizer = experiment.tokenizer
    shapes = (
        padded_shape(pairs, tokenizer.query_length),
        padded_shape(pairs * (1 + k), tokenizer.passage_length),
    )
  else:
    shapes = experiment.batches.shapes
    shapes = shapes[min(1, max(len(shapes) - 2, 0))]
  return batches_lib.abstract_batch(
      shapes, size, cells, k, jax.ShapeDtypeStruct, experiment.extra_columns
  )
