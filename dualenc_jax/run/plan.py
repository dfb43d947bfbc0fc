"""A run, planned: shapes, shardings and compiled functions, no numbers yet."""

import jax
import numpy as np

from dualenc_jax.parallel import partitioning
from dualenc_jax.run.experiment import Experiment
from dualenc_jax.training import initial, step as step_lib
from dualenc_jax.training.step import Plan


def make_plan(experiment: Experiment) -> Plan:
  """Checks the model against the mesh and traces its parameters.

  Raises:
    UserError: sizes that do not divide, rules that match nothing.
  """
  experiment.objective.check_mesh(experiment.partitioner)
  return step_lib.plan(
      experiment.objective,
      experiment.optimizer,
      experiment.partitioner,
      experiment.seed,
  )


def make_start(plan: Plan, experiment: Experiment) -> initial.Start | None:
  """What a run without a checkpoint of its own starts from; None: scratch."""
  source = experiment.initial_checkpoint
  if source is None or getattr(source, 'path', source) is None:
    return None
  return initial.plan_start(
      source,
      experiment.objective.facts,
      experiment.tokenizer.vocabulary,
      plan.abstract.params,
  )


def param_paths(plan: Plan) -> list[str]:
  """Paths of the parameters, in the order of the step's gradients."""
  return partitioning.leaf_paths(plan.abstract.params)


def count_params(plan: Plan) -> int:
  """Numbers in all trained and frozen parameters."""
  leaves = jax.tree.leaves(plan.abstract.params)
  return sum(int(np.prod(leaf.shape)) for leaf in leaves)
