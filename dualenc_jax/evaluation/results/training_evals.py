"""Evaluation in training: before the first step, on validation, alignment."""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import functools
import logging
import pathlib
from typing import Any

import jax
import numpy as np

from dualenc_jax.data.text.joined import Around
from dualenc_jax.evaluation import (
  by_scores,
  divergence,
  evaluation,
  likelihoods,
  rerank,
)
from dualenc_jax.evaluation.evaluation import Evaluation
from dualenc_jax.evaluation.results import result_files
from dualenc_jax.evaluation.results.result_files import VALIDATION
from dualenc_jax.evaluation.results.result_writer import values_by_query
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.models import model_params
from dualenc_jax.retrieval.encoding import calibration
from dualenc_jax.retrieval.encoding.embedder import Embedder, Scorer
from dualenc_jax.retrieval.encoding.teacher import Teacher
from dualenc_jax.retrieval.search.bm25 import BM25
from dualenc_jax.training.experiment import Experiment
from dualenc_jax.training.hooks import Hook, Training
from dualenc_jax.training.step import Plan
from dualenc_jax.utils import files
from dualenc_jax.utils.errors import UserError

# Of what is measured, whose lowest value is the best.
_FALLING = (likelihoods.PERPLEXITY,)
# Hits that a cross-encoder orders: all of 1,000 queries would take minutes.
_DEPTH = 20
# Sub-corpora of these evaluations; all relevant passages are among them.
_QUERIES, _PASSAGES = 1000, 10_000
# Alignment: the most queries, half of them embedded by each tower, and the
# number of the nearest neighbour.
_ALIGNED, _NEIGHBOUR = 4000, 1
# Two towers whose embeddings differ by no more compute the same.
_SAME = 1e-5
Evaluate = Callable[[Any, RetrievalSet], Evaluation]
_LOG = logging.getLogger(__name__)


def hooks(experiment: Experiment, plan: Plan) -> list[Hook]:
  """What measures a run, and may end it: by metrics, and by alignment."""
  check(experiment)
  return [*_evaluations(experiment, plan), *_alignment(experiment, plan)]


def check(experiment: Experiment) -> None:
  """Raises UserError where KEEP_BEST or UNTIL lacks the split validation."""
  for name in ('keep_best', 'until'):
    wants = getattr(experiment, name) is not None
    if wants and VALIDATION not in experiment.task.splits():
      try:
        task = experiment.task.for_split(VALIDATION)
        task.check_split(VALIDATION)
        raise task.no_split(VALIDATION, task.splits())
      except UserError as e:
        raise UserError(
            f'{name.upper()} is given, which is measured on split {VALIDATION},'
            f' and there is none: {e}'
        ) from e


def _evaluations(experiment: Experiment, plan: Plan) -> list[Hook]:
  """Evaluates on fixed sub-corpora: of the validation split, of other tasks.

  A dual encoder ranks the sub-corpus, a cross-encoder the best hits of BM25; of
  a generator it is how likely it finds the queries, given their passages. []
  where the objective has none of an `embedder`, as `Contrastive` has, a
  `scorer`, as `Ranking`, and a `likelihood`, as `Generation`, or `eval_every`
  is 0.
  """
  evaluate = _evaluator(experiment, plan)
  if not experiment.eval_every or evaluate is None:
    return []
  parts = [_hook(experiment, evaluate, *part) for part in _parts(experiment)]
  warn = functools.partial(_warn_of_overlap, experiment)
  return [Hook(warn, at_start=True, at_end=False), *parts]


def _evaluator(experiment: Experiment, plan: Plan) -> Evaluate | None:
  objective: Any = experiment.objective
  of_mesh = (
      plan.abstract.params, experiment.partitioner, experiment.eval_batch_size
  )
  if hasattr(objective, 'embedder'):
    embedder = objective.embedder(*of_mesh)
    codec_of = getattr(objective, 'codec_of', lambda params: None)
    return lambda params, part: evaluation.evaluate(
        embedder, model_params(params), part, codec=codec_of(params)
    )
  if hasattr(objective, 'likelihood'):
    likelihood = objective.likelihood(
        *of_mesh, experiment.tokenizer.query_length
    )
    return lambda params, part: likelihoods.evaluate(
        functools.partial(likelihood, model_params(params)), part
    )
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

  `scored` are the scores of the last evaluation, and which are of relevant
  pairs.
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
      (self._first[id(part)],) = by_scores.evaluate(
          zip(BM25(part.corpus.texts).retrieved(part.query_texts)), part
      )
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


def _warn_of_overlap(experiment: Experiment, run: Training) -> None:
  """Warns where pairs of the validation split are trained on, too."""
  del run
  if VALIDATION not in experiment.task.splits():
    return
  held_out = np.unique(_pairs(experiment.cache(VALIDATION)))
  seen = np.zeros(len(held_out), bool)
  for cache in experiment.caches:
    seen |= np.isin(held_out, _pairs(cache))
  if seen.any():
    _LOG.warning(
        '%s of the %s pairs of split %s are in the training data, too: what is'
        ' measured there flatters. `dualenc data check` says which.',
        f'{np.count_nonzero(seen):,}', f'{len(held_out):,}', VALIDATION,
    )


def _pairs(cache: Any) -> np.ndarray:
  """A fingerprint of each row that has a query and a passage, uint64 [n]."""
  odd = np.uint64(0x9E3779B97F4A7C15)
  both = np.ones(len(cache), bool)
  for tokens in (cache.query_tokens, cache.passage_tokens):
    both &= np.diff(tokens.offsets) > 0
  return (cache.query_fingerprints * odd ^ cache.passage_fingerprints)[both]


def _parts(experiment: Experiment) -> Iterator[tuple[str, RetrievalSet]]:
  """Yields group and sub-corpus."""
  task = experiment.task
  if VALIDATION in task.splits():
    corpus_split = task.for_split(VALIDATION).corpus_split(VALIDATION)
    if corpus_split is not None:
      _LOG.info(
          'Evaluation while training ranks the judged passages of split'
          ' validation alone, not those of split %s as `dualenc evaluate`.',
          corpus_split,
      )
    yield VALIDATION, RetrievalSet.from_cache(experiment.cache(VALIDATION))
  else:
    _LOG.info('The task %s has no validation split.', task.task_name)
  for other in experiment.watch_tasks:
    yield f'{VALIDATION}/{other.label}', RetrievalSet.of_split(
        dataclasses.replace(experiment, task=other), other.evaluated
    )


def _hook(
    experiment: Experiment, evaluate: Evaluate, group: str,
    everything: RetrievalSet,
) -> Hook:
  part = everything.subset(_QUERIES, _PASSAGES)
  model_dir = pathlib.Path(experiment.model_dir)
  output = model_dir / group

  def write(name: str, found: Evaluation) -> None:
    result_files.write_per_query(
        output / name, *values_by_query(part, found)
    )

  def measure(run: Training) -> dict[str, float]:
    assert run.state is not None
    found = evaluate(run.state.params, part)
    if jax.process_index() == 0:
      files.make_folder(output, 'another MODEL_DIR')
      write(result_files.AFTER if run.step else result_files.BEFORE, found)
      if isinstance(evaluate, _Reranking):
        write(result_files.OF_BM25, evaluate.first(part))
        if group == VALIDATION:
          _calibrate(evaluate, run.step, len(part.corpus), model_dir)
    if group == VALIDATION and experiment.keep_best is not None:
      _note_best(experiment, found.metrics, run)
    return found.metrics

  return Hook(measure, experiment.eval_every, at_start=True, group=group)


def _calibrate(
    evaluated: _Reranking, step: int, passages: int, model_dir: pathlib.Path
) -> None:
  """Saves how the scores of the last evaluation become probabilities."""
  found = calibration.fit(*evaluated.scored)
  if found is not None:
    what = f'the {min(_DEPTH, passages)} best of BM25, split {VALIDATION}'
    found = dataclasses.replace(found, step=step, candidates=what)
  elif step:
    _LOG.warning(
        'Scores on split %s cannot become probabilities: relevant pairs do not'
        ' score higher there, or there are none.',
        VALIDATION,
    )
  calibration.save(found, model_dir)


def _note_best(
    experiment: Any, metrics: Mapping[str, float], run: Training
) -> None:
  """Has the best step so far saved, and ends the run that has none for long."""
  name, patience = experiment.keep_best, experiment.patience
  if name not in metrics:
    raise UserError(
        f'KEEP_BEST is {name!r}; the evaluations on split {VALIDATION} have'
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


def _alignment(experiment: Experiment, plan: Plan) -> list[Hook]:
  """Measures the divergence of the towers, and ends the run by it.

  [] without `Experiment.until`.
  """
  if experiment.until is None:
    return []
  objective: Any = experiment.objective
  model = getattr(objective, 'model', None)
  if getattr(model, 'passage_encoder', None) is None:
    raise UserError(
        'UNTIL is given, but the towers share their encoder, so there is'
        ' nothing to align. Give --gin_file=architectures/light_query.gin.'
    )
  embedder = objective.embedder(
      plan.abstract.params, experiment.partitioner, experiment.eval_batch_size
  )
  # Its errors, before passages are encoded.
  _query_rows(experiment)
  measure = functools.partial(_measure_alignment, experiment, embedder)
  every = experiment.eval_every
  return [Hook(measure, every, at_start=True, group='alignment')]


def _query_rows(experiment: Any) -> np.ndarray:
  """Rows of different queries of the validation split, as many as are asked."""
  cache, least = experiment.cache(VALIDATION), 2 * (_NEIGHBOUR + 1)
  there = np.flatnonzero(cache.query_tokens.lengths)
  _, first = np.unique(cache.query_fingerprints[there], return_index=True)
  rows = there[np.sort(first)]
  if len(rows) < least:
    raise UserError(
        f'Split {VALIDATION} of {cache.header["task"]} has {len(rows)}'
        f' different queries; expected at least {least}. Give more.'
    )
  rng = np.random.default_rng(experiment.seed)
  return np.sort(rng.permutation(rows)[:_ALIGNED])


def _measure_alignment(
    experiment: Any, embedder: Embedder, run: Any
) -> dict[str, float]:
  until, rows = experiment.until, _query_rows(experiment)
  tokens = experiment.cache(VALIDATION).query_tokens
  params: Any = model_params(run.state.params)
  passage = embedder.passages(params, tokens, rows).astype(np.float64)
  query = embedder.queries(params, tokens, rows).astype(np.float64)
  if not run.step and np.abs(passage - query).max() < _SAME:
    raise UserError(
        'Both towers give every query the same embedding, so that there is'
        ' nothing to align and the divergence is minus infinity. Expected a'
        ' query tower of other layers: QUERY_LAYERS, QUERY_LAYERS_FROM.'
    )
  found = divergence.alignment(
      passage, query, _NEIGHBOUR, experiment.seed
  )
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
