"""Whether two towers put queries into the same places, while training."""

import functools
from typing import Any

import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.evaluation import divergence
from dualenc_jax.inference.embedder import Embedder
from dualenc_jax.models import model_params
from dualenc_jax.run.experiment import Experiment
from dualenc_jax.run.hooks import Hook, Training
from dualenc_jax.training.step import Plan

GROUP = 'alignment'
SPLIT = 'validation'
# Two towers whose embeddings differ by no more compute the same.
_SAME = 1e-5


def hooks(experiment: Experiment, plan: Plan) -> list[Hook]:
  """Measures the divergence of the towers, and ends the run by it.

  [] without `Experiment.until`.

  Raises:
    UserError: there are no towers to align, or too few queries.
  """
  if experiment.until is None:
    return []
  objective = experiment.objective
  model = getattr(objective, 'model', None)
  if getattr(model, 'passage_encoder', None) is None:
    raise UserError(
        'UNTIL is given, and the towers share their encoder, so that there is'
        ' nothing to align. Give --gin_file=architectures/light_query.gin.'
    )
  if SPLIT not in experiment.task.splits():
    raise UserError(
        f'UNTIL is given, and the task {experiment.task.task_name} has no'
        f' {SPLIT} split, on whose queries alignment is measured. Give a task'
        ' that has one: VALIDATION_FILE of tasks/pairs.gin, say.'
    )
  embedder = objective.embedder(
      plan.abstract.params, experiment.partitioner, experiment.eval_batch_size
  )
  # Its errors, before passages are encoded.
  query_rows(experiment)
  measure = functools.partial(_measure, experiment, embedder)
  return [Hook(measure, experiment.eval_every, at_start=True, group=GROUP)]


def query_rows(experiment: Experiment) -> np.ndarray:
  """Rows of different queries of the validation split, as many as are asked.

  Raises:
    UserError: they are too few.
  """
  until, cache = experiment.until, experiment.cache(SPLIT)
  there = np.flatnonzero(cache.query_tokens.lengths)
  _, first = np.unique(cache.query_fingerprints[there], return_index=True)
  rows = there[np.sort(first)]
  if len(rows) < 2 * (until.k + 1):
    raise UserError(
        f'Split {SPLIT} of {cache.header["task"]} has {len(rows)} different'
        f' queries; expected at least {2 * (until.k + 1)}, twice as many as'
        f' the nearest neighbour number {until.k} needs. Give more queries.'
    )
  rng = np.random.default_rng(experiment.seed)
  return np.sort(rng.permutation(rows)[: until.queries])


def _measure(
    experiment: Experiment, embedder: Embedder, run: Training
) -> dict[str, float]:
  until, rows = experiment.until, query_rows(experiment)
  tokens = experiment.cache(SPLIT).query_tokens
  params: Any = model_params(run.state.params)
  passage = embedder.passages(params, tokens, rows).astype(np.float64)
  query = embedder.queries(params, tokens, rows).astype(np.float64)
  if not run.step and np.abs(passage - query).max() < _SAME:
    raise UserError(
        'Both towers give every query the same embedding, so that there is'
        ' nothing to align and the divergence is minus infinity. Expected a'
        ' query tower of other layers: QUERY_LAYERS, QUERY_LAYERS_FROM.'
    )
  found = divergence.alignment(passage, query, until.k, experiment.seed)
  ranks = [divergence.effective_rank(x) for x in (query, passage)]
  kl, floor = found.forward.value, found.floor.value
  notes = run.notes.setdefault('alignment', {})
  ended = until.end(notes, kl, floor, ranks[0] / ranks[1])
  if ended:
    run.notes['ended'] = ended
  return {
      'kl': kl,
      'kl_low': found.forward.low,
      'kl_high': found.forward.high,
      'kl_reverse': found.reverse.value,
      'kl_floor': floor,
      'kl_limit': until.limit(notes['start'], floor),
      'query_rank': ranks[0],
      'passage_rank': ranks[1],
      'cosine': float(np.mean(np.sum(passage * query, axis=1))),
      'queries': float(found.points),
  }
