"""Evaluation while a dual encoder trains."""

import logging

from dualenc_jax.evaluation import evaluation
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.models import model_params
from dualenc_jax.run.experiment import Experiment
from dualenc_jax.run.hooks import Hook, Training
from dualenc_jax.training.step import Plan

_LOG = logging.getLogger(__name__)


def hooks(experiment: Experiment, plan: Plan) -> list[Hook]:
  """Evaluates on a fixed sub-corpus of the validation split, if there is one.

  [] too where the objective has no `embedder`, as `Contrastive` has, or
  `eval_every` is 0.
  """
  make_embedder = getattr(experiment.objective, 'embedder', None)
  if not experiment.eval_every or make_embedder is None:
    return []
  task = experiment.task
  if 'validation' not in task.splits():
    _LOG.info('The task %s has no validation split.', task.task_name)
    return []
  corpus_split = task.for_split('validation').corpus_split('validation')
  if corpus_split is not None:
    _LOG.info(
        'Evaluation while training ranks the judged passages of split'
        ' validation alone, not those of split %s as `dualenc evaluate`.',
        corpus_split,
    )
  everything = RetrievalSet.from_cache(experiment.cache('validation'))
  part = everything.subset(experiment.eval_queries, experiment.eval_passages)
  embedder = make_embedder(
      plan.abstract.params, experiment.partitioner, experiment.eval_batch_size
  )

  def evaluate(run: Training) -> dict[str, float]:
    params = model_params(run.state.params)
    return evaluation.evaluate(embedder, params, part).metrics

  return [Hook(evaluate, experiment.eval_every, group='validation')]
