"""Evaluation while training, before the first step too, and what it changed."""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import functools
import logging
import pathlib
from typing import Any

import jax
import numpy as np

from dualenc_jax.data import Cache
from dualenc_jax.errors import UserError
from dualenc_jax.evaluation import (
  by_scores,
  evaluation,
  likelihoods,
  rerank,
)
from dualenc_jax.evaluation.evaluation import Evaluation
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.inference import calibration
from dualenc_jax.inference.embedder import Scorer
from dualenc_jax.inference.teacher import Teacher
from dualenc_jax.io import files
from dualenc_jax.models import model_params
from dualenc_jax.results.before_after import AFTER, BEFORE, BM25_FILE, SPLIT
from dualenc_jax.results.folder import write_per_query
from dualenc_jax.results.result import per_query
from dualenc_jax.run.experiment import Experiment
from dualenc_jax.run.hooks import Hook, Training
from dualenc_jax.search.bm25 import BM25
from dualenc_jax.text.joined import Around
from dualenc_jax.training.step import Plan

# Of what is measured, whose lowest value is the best.
_FALLING = (likelihoods.PERPLEXITY,)
# Hits that a cross-encoder orders: all of 1,000 queries would take minutes.
_DEPTH = 20
Evaluate = Callable[[Any, RetrievalSet], Evaluation]
_LOG = logging.getLogger(__name__)


def hooks(experiment: Experiment, plan: Plan) -> list[Hook]:
  """Evaluates on fixed sub-corpora: of the validation split, of other tasks.

  A dual encoder ranks the sub-corpus, a cross-encoder the best hits of BM25; a
  generator is told how likely it finds the queries, given their passages. []
  where the objective has none of an `embedder`, as `Contrastive` has, a
  `scorer`, as `Ranking`, and a `likelihood`, as `Generation`, or `eval_every`
  is 0.
  """
  evaluate = _evaluator(experiment, plan)
  if not experiment.eval_every or evaluate is None:
    return []
  if experiment.keep_best is not None and SPLIT not in experiment.task.splits():
    raise UserError(
        f'KEEP_BEST is given, and the task {experiment.task.task_name} has no'
        f' {SPLIT} split to tell by. Give one, or KEEP_BEST=None.'
    )
  return [
      Hook(lambda run: tell_overlap(experiment), at_start=True, at_end=False),
      *(
          _hook(experiment, evaluate, group, part)
          for group, part in _parts(experiment)
      ),
  ]


def _evaluator(experiment: Experiment, plan: Plan) -> Evaluate | None:
  objective = experiment.objective
  of_mesh = (
      plan.abstract.params, experiment.partitioner, experiment.eval_batch_size
  )
  if hasattr(objective, 'embedder'):
    embedder = objective.embedder(*of_mesh)
    codec_of = getattr(objective, 'codec_of', lambda params: None)

    def evaluate(params: Any, part: RetrievalSet) -> Evaluation:
      return evaluation.evaluate(
          embedder, model_params(params), part, codec=codec_of(params)
      )

    return evaluate
  if hasattr(objective, 'likelihood'):
    likelihood = objective.likelihood(
        *of_mesh, experiment.tokenizer.query_length
    )

    def measure(params: Any, part: RetrievalSet) -> Evaluation:
      own = functools.partial(likelihood, model_params(params))
      return likelihoods.evaluate(own, part)

    return measure
  if not hasattr(objective, 'scorer'):
    return None
  _LOG.info(
      'Evaluation while training re-ranks the %d best hits of BM25.', _DEPTH
  )
  return _Reranking(
      experiment, objective.scorer(*of_mesh), objective.around(experiment)
  )


class _Reranking:
  """Evaluates a cross-encoder on BM25's hits.

  Attributes:
    scored: the scores of the last evaluation, and which are of relevant pairs.
  """

  def __init__(self, experiment: Experiment, scorer: Scorer, around: Around):
    self.scored = np.zeros(0), np.zeros(0, bool)
    self._make = functools.partial(
        Teacher,
        tokenizer=experiment.tokenizer,
        around=around,
        scorer=scorer,
        provenance={},
    )
    # By sub-corpus, each of which is ranked once.
    self._first: dict[int, Evaluation] = {}

  def first(self, part: RetrievalSet) -> Evaluation:
    """BM25's own result."""
    if id(part) not in self._first:
      self._first[id(part)] = _of_bm25(part)
    return self._first[id(part)]

  def __call__(self, params: Any, part: RetrievalSet) -> Evaluation:
    teacher = self._make(model_params(params))

    def score(pairs: np.ndarray) -> np.ndarray:
      found = teacher.scores(part.query_texts, part.corpus.texts, pairs)
      gold = part.gold
      relevant = [passage in gold[query] for query, passage in pairs]
      self.scored = found, np.array(relevant, bool)
      return found

    return rerank.evaluate(self.first(part), part, score, _DEPTH)


def _of_bm25(part: RetrievalSet) -> Evaluation:
  words = BM25(part.corpus.texts)
  return by_scores.evaluate(map(words.scores, part.query_texts), part)


def tell_overlap(experiment: Experiment) -> None:
  """Warns where pairs of the validation split are trained on, too."""
  if SPLIT not in experiment.task.splits():
    return
  held_out = np.unique(_pairs(experiment.cache(SPLIT)))
  seen = np.zeros(len(held_out), bool)
  for cache in experiment.caches:
    seen |= np.isin(held_out, _pairs(cache))
  if seen.any():
    _LOG.warning(
        '%s of the %s pairs of split %s are in the training data, too: what is'
        ' measured there flatters. `dualenc data check` says which.',
        f'{np.count_nonzero(seen):,}',
        f'{len(held_out):,}',
        SPLIT,
    )


def _parts(experiment: Experiment) -> Iterator[tuple[str, RetrievalSet]]:
  """Yields group and sub-corpus."""
  task = experiment.task
  if SPLIT in task.splits():
    corpus_split = task.for_split(SPLIT).corpus_split(SPLIT)
    if corpus_split is not None:
      _LOG.info(
          'Evaluation while training ranks the judged passages of split'
          ' validation alone, not those of split %s as `dualenc evaluate`.',
          corpus_split,
      )
    yield SPLIT, RetrievalSet.from_cache(experiment.cache(SPLIT))
  else:
    _LOG.info('The task %s has no validation split.', task.task_name)
  for other in experiment.watch_tasks:
    yield f'{SPLIT}/{other.label}', RetrievalSet.of_split(
        dataclasses.replace(experiment, task=other), other.evaluated
    )


def _calibrate(
    evaluated: _Reranking, step: int, passages: int, model_dir: pathlib.Path
) -> None:
  """Saves how the scores of the last evaluation become probabilities."""
  found = calibration.fit(*evaluated.scored)
  if found is None:
    if step:
      _LOG.warning(
          'Its scores on split %s become no probabilities: relevant pairs do'
          ' not score higher there, or there are none.',
          SPLIT,
      )
  else:
    what = f'the {min(_DEPTH, passages)} best of BM25, split {SPLIT}'
    found = dataclasses.replace(found, step=step, candidates=what)
  calibration.save(found, model_dir)


def _pairs(cache: Cache) -> np.ndarray:
  """A fingerprint of each row that has a query and a passage, uint64 [n]."""
  odd = np.uint64(0x9E3779B97F4A7C15)
  both = np.ones(len(cache), bool)
  for tokens in (cache.query_tokens, cache.passage_tokens):
    both &= np.diff(tokens.offsets) > 0
  return (cache.query_fingerprints * odd ^ cache.passage_fingerprints)[both]


def _hook(
    experiment: Experiment,
    evaluate: Evaluate,
    group: str,
    everything: RetrievalSet,
) -> Hook:
  part = everything.subset(experiment.eval_queries, experiment.eval_passages)
  folder = pathlib.Path(experiment.model_dir) / group

  def measure(run: Training) -> dict[str, float]:
    found = evaluate(run.state.params, part)
    if jax.process_index() == 0:
      files.make_folder(folder, 'another MODEL_DIR')
      path = folder / (AFTER if run.step else BEFORE)
      write_per_query(path, *per_query(part, found))
      if isinstance(evaluate, _Reranking):
        own = per_query(part, evaluate.first(part))
        write_per_query(folder / BM25_FILE, *own)
        if group == SPLIT:
          model_dir = pathlib.Path(experiment.model_dir)
          _calibrate(evaluate, run.step, len(part.corpus), model_dir)
    if group == SPLIT and experiment.keep_best is not None:
      _note_best(experiment, found.metrics, run)
    return found.metrics

  return Hook(measure, experiment.eval_every, at_start=True, group=group)


def _note_best(
    experiment: Experiment, metrics: Mapping[str, float], run: Training
) -> None:
  """Has the best step so far saved, and ends the run that has none for long."""
  name, patience = experiment.keep_best, experiment.patience
  if name not in metrics:
    raise UserError(
        f'KEEP_BEST is {name!r}; the evaluations on split {SPLIT} have'
        f' {", ".join(metrics)}. Expected one of them.'
    )
  best = run.notes.get('best')
  sign = -1 if name in _FALLING else 1
  if best is None or sign * metrics[name] > sign * best['value']:
    run.notes['best'] = {
        'step': run.step, 'metric': name, 'value': metrics[name], 'since': 0
    }
    run.save = True
    return
  best['since'] += 1
  if patience is not None and best['since'] >= patience:
    run.notes['ended'] = (
        f'{name} has not {"fallen" if sign < 0 else "risen"} at the last'
        f' {best["since"]} of the evaluations.'
    )
