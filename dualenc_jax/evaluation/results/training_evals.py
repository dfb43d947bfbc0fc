"""Evaluation in training: before the first step, on validation, alignment."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
import logging
import pathlib
from typing import Any

import jax
import numpy as np

from dualenc_jax.evaluation import divergence, evaluation
from dualenc_jax.evaluation.evaluation import Evaluation
from dualenc_jax.evaluation.metrics import Scores
from dualenc_jax.evaluation.results import result_files
from dualenc_jax.evaluation.results.result_files import VALIDATION
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.models import model_params, SplitRanker
from dualenc_jax.retrieval.encoding.embedder import Embedder, Likelihood, Scorer
from dualenc_jax.retrieval.encoding.split_teacher import (
  SplitScorer,
  SplitTeacher,
)
from dualenc_jax.retrieval.encoding.teacher import (
  fit_calibration,
  PairScorer,
  save_calibration,
  Teacher,
)
from dualenc_jax.retrieval.encoding.towers import LoadedModel
from dualenc_jax.retrieval.search.bm25 import BM25
from dualenc_jax.training.checkpoints import note_best
from dualenc_jax.training.experiment import Experiment
from dualenc_jax.training.hooks import Hook, Training
from dualenc_jax.training.step import Plan
from dualenc_jax.utils import files
from dualenc_jax.utils.errors import UserError

# A generator's metrics.
_LOG_LIKELIHOOD, _ACCURACY = 'log_likelihood', 'token_accuracy'
# Hits that a cross-encoder orders. All hits of 1,000 queries take minutes.
_DEPTH = 20
# The most queries and passages of a sub-corpus, which has all relevant ones.
_QUERIES, _PASSAGES = 1000, 10_000
# Alignment: the most queries, half of them embedded by each tower.
_ALIGNED = 4000
# Embeddings closer than this count as equal.
_SAME = 1e-5
# Means by name, and the values that they are of.
_Measured = tuple[Mapping[str, float], Scores]
Evaluate = Callable[[Any, RetrievalSet], _Measured]
_LOG = logging.getLogger(__name__)


def hooks(experiment: Experiment, plan: Plan) -> list[Hook]:
  """Makes the hooks that measure a run, and may end it.

  Raises:
    UserError: KEEP_BEST or UNTIL is given without a split validation, or UNTIL
      for towers that share their encoder.
  """
  for name in ('keep_best', 'until'):
    wants = getattr(experiment, name) is not None
    if wants and VALIDATION not in experiment.task.splits():
      raise UserError(
          f'{name.upper()} is measured on split {VALIDATION}, which the task'
          f' {experiment.task.task_name} has not. Give it, or leave'
          f' {name.upper()} out.'
      )
  return [*_evaluations(experiment, plan), *_alignment(experiment, plan)]


def _evaluations(experiment: Experiment, plan: Plan) -> list[Hook]:
  """Evaluates on fixed sub-corpora of the validation split and other tasks.

  A dual encoder ranks the sub-corpus, and a cross-encoder the best hits of
  BM25. A generator is measured by the likelihood of the queries, given their
  passages. There are no hooks if the objective has none of an `embedder`, a
  `scorer` and a `likelihood`, or `eval_every` is 0.
  """
  evaluate = _evaluator(experiment, plan)
  if not experiment.eval_every or evaluate is None:
    return []
  parts = [
      _hook(experiment, plan, evaluate, *part) for part in _parts(experiment)
  ]
  warn = functools.partial(_warn_of_overlap, experiment)
  return [Hook(warn, at_start=True, at_end=False), *parts]


def _evaluator(experiment: Experiment, plan: Plan) -> Evaluate | None:
  objective: Any = experiment.objective
  if objective.outputs is None:
    return None
  on_mesh = (
      objective.model, plan.all_params(plan.abstract), experiment.partitioner,
      experiment.eval_batch_size,
  )
  if objective.outputs == 'embeddings':
    embedder = Embedder.for_params(*on_mesh)
    return lambda params, part: _measured(evaluation.evaluate(
        embedder, model_params(params), part, codec=objective.codec_of(params)
    ))
  if objective.outputs == 'queries':
    likelihood = Likelihood.for_params(
        *on_mesh, length=experiment.tokenizer.query_length
    )
    return lambda params, part: _evaluate_likelihood(
        likelihood, model_params(params), part
    )
  _LOG.info(
      'Evaluation while training re-ranks the %d best hits of BM25.', _DEPTH
  )
  return _Reranking(_teacher_maker(experiment, on_mesh))


def _teacher_maker(
    experiment: Experiment, on_mesh: Sequence[Any]
) -> Callable[[Any], PairScorer]:
  """Returns a function from parameters to a teacher, for models of pairs."""
  objective: Any = experiment.objective
  tokenizer = experiment.tokenizer
  if isinstance(objective.model, SplitRanker):
    split = SplitScorer.for_params(*on_mesh)
    return lambda params: SplitTeacher(
        LoadedModel(params, tokenizer, split, {})
    )
  return functools.partial(
      Teacher, tokenizer=tokenizer,
      template=objective.token_template(experiment),
      scorer=Scorer.for_params(*on_mesh), provenance={},
  )


def _evaluate_likelihood(
    likelihood: Likelihood, params: Any, part: RetrievalSet
) -> _Measured:
  """Measures each token, given the passage and the tokens before it.

  Means are over all tokens, the values over those of each query.
  """
  gold, corpus, cache = part.gold, part.corpus, part.cache
  of_pair = np.repeat(np.arange(len(gold)), [len(rows) for rows in gold])
  passages = np.concatenate([np.array(rows, np.int64) for rows in gold])
  queries = part.query_rows[of_pair]
  logs, correct = likelihood(
      params,
      cache.query_tokens,
      corpus.cache.passage_tokens,
      np.stack([queries, corpus.rows[passages]], axis=1),
  )
  answered, position = np.unique(of_pair, return_inverse=True)
  tokens = np.bincount(position, cache.query_tokens.lengths[queries])
  sums = {
      name: np.bincount(position, values.astype(np.float64))
      for name, values in ((_LOG_LIKELIHOOD, logs), (_ACCURACY, correct))
  }
  means = {n: float(values.sum() / tokens.sum()) for n, values in sums.items()}
  means['perplexity'] = float(np.exp(-means[_LOG_LIKELIHOOD]))
  by_query = {name: values / tokens for name, values in sums.items()}
  return means, Scores(answered, by_query)


def _measured(result: Evaluation) -> _Measured:
  return result.metrics, result.scores


class _Reranking:
  """Evaluates a cross-encoder on BM25's hits.

  Attributes:
    scored: the scores of the last evaluation, float32 [n], and which are those
      of relevant pairs, bool [n].
  """

  def __init__(self, make: Callable[[Any], PairScorer]):
    """Takes what makes a teacher of the model's parameters."""
    self.scored = np.zeros(0), np.zeros(0, bool)
    self._make = make
    # By sub-corpus, each of which is ranked once.
    self._bm25: dict[int, Evaluation] = {}

  def bm25(self, part: RetrievalSet) -> Evaluation:
    """BM25's own result."""
    if id(part) not in self._bm25:
      (self._bm25[id(part)],) = evaluation.rank_by_scores(
          zip(BM25(part.corpus.texts).matched_scores(part.query_texts)), part
      )
    return self._bm25[id(part)]

  def __call__(self, params: Any, part: RetrievalSet) -> _Measured:
    teacher = self._make(model_params(params))

    def score(pairs: np.ndarray) -> np.ndarray:
      scores = teacher.scores(part.query_texts, part.corpus.texts, pairs)
      gold = part.gold
      relevant = [passage in gold[query] for query, passage in pairs]
      self.scored = scores, np.array(relevant, bool)
      return scores

    return _measured(evaluation.rerank(self.bm25(part), part, score, _DEPTH))


def _warn_of_overlap(experiment: Experiment, run: Training) -> None:
  """Warns if pairs of the validation split are in the training data."""
  del run
  if VALIDATION not in experiment.task.splits():
    return
  held_out = np.unique(_pairs(experiment.cache(VALIDATION)))
  seen = np.zeros(len(held_out), bool)
  for cache in experiment.caches:
    seen |= np.isin(held_out, _pairs(cache))
  if seen.any():
    _LOG.warning(
        '%s of the %s pairs of split %s are in the training data, too: its'
        ' metrics are too high. `dualenc data check` names the pairs.',
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
    experiment: Experiment, plan: Plan, evaluate: Evaluate, group: str,
    everything: RetrievalSet,
) -> Hook:
  part = everything.subset(_QUERIES, _PASSAGES)
  model_dir = pathlib.Path(experiment.model_dir)
  folder = model_dir / group

  def write(name: str, scores: Scores) -> None:
    query_ids = [part.query_ids[query] for query in scores.queries]
    result_files.write_per_query(
        folder / name, Scores(query_ids, scores.values)
    )

  def measure(run: Training) -> dict[str, float]:
    assert run.state is not None
    means, scores = evaluate(plan.all_params(run.state), part)
    if jax.process_index() == 0:
      files.make_folder(folder, 'another MODEL_DIR')
      write(result_files.AFTER if run.step else result_files.BEFORE, scores)
      if isinstance(evaluate, _Reranking):
        write(result_files.OF_BM25, evaluate.bm25(part).scores)
        if group == VALIDATION:
          _calibrate(evaluate, run.step, model_dir)
    if group == VALIDATION and experiment.keep_best is not None:
      note_best(run, means, experiment.keep_best, experiment.patience)
    return dict(means)

  return Hook(measure, experiment.eval_every, at_start=True, group=group)


def _calibrate(
    evaluated: _Reranking, step: int, model_dir: pathlib.Path
) -> None:
  """Fits and saves the calibration of the last evaluation's scores."""
  fitted = fit_calibration(*evaluated.scored)
  if fitted is not None:
    fitted = dataclasses.replace(fitted, step=step)
  elif step:
    _LOG.warning(
        'Scores on split %s cannot be calibrated: relevant pairs do not score'
        ' higher there, or are missing.',
        VALIDATION,
    )
  save_calibration(fitted, model_dir)


def _alignment(experiment: Experiment, plan: Plan) -> list[Hook]:
  """Measures the divergence of the towers, and ends the run by it.

  There is no hook without `Experiment.until`.
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
  embedder = Embedder.for_params(
      model, plan.all_params(plan.abstract), experiment.partitioner,
      experiment.eval_batch_size,
  )
  # Its errors come before passages are encoded.
  _query_rows(experiment)
  measure = functools.partial(_measure_alignment, experiment, plan, embedder)
  every = experiment.eval_every
  return [Hook(measure, every, at_start=True, group='alignment')]


def _query_rows(experiment: Any) -> np.ndarray:
  """Draws rows of different queries of the validation split."""
  cache = experiment.cache(VALIDATION)
  there = np.flatnonzero(cache.query_tokens.lengths)
  _, first = np.unique(cache.query_fingerprints[there], return_index=True)
  rows = there[np.sort(first)]
  if len(rows) < 4:
    raise UserError(
        f'Split {VALIDATION} of {cache.header["task"]} has {len(rows)}'
        ' different queries; expected at least 4. Give more.'
    )
  rng = np.random.default_rng(experiment.seed)
  return np.sort(rng.permutation(rows)[:_ALIGNED])


def _measure_alignment(
    experiment: Any, plan: Plan, embedder: Embedder, run: Any
) -> dict[str, float]:
  until, rows = experiment.until, _query_rows(experiment)
  tokens = experiment.cache(VALIDATION).query_tokens
  params: Any = model_params(plan.all_params(run.state))
  passage = embedder.passages(params, tokens, rows).astype(np.float64)
  query = embedder.queries(params, tokens, rows).astype(np.float64)
  if not run.step and np.abs(passage - query).max() < _SAME:
    raise UserError(
        'Both towers give every query the same embedding, so that there is'
        ' nothing to align. Expected a query tower of other layers:'
        ' QUERY_LAYERS, QUERY_LAYERS_FROM.'
    )
  measured = divergence.alignment(passage, query, experiment.seed)
  ranks = [divergence.effective_rank(x) for x in (query, passage)]
  kl, floor = measured.forward, measured.floor
  notes = run.notes.setdefault('alignment', {})
  ended = until.end(notes, kl, floor, ranks[0] / ranks[1])
  if ended:
    run.notes['ended'] = ended
  return {
      'kl': kl,
      'kl_reverse': measured.reverse,
      'kl_floor': floor,
      'kl_limit': until.limit(notes['start'], floor),
      'query_rank': ranks[0],
      'passage_rank': ranks[1],
      'cosine': float(np.mean(np.sum(passage * query, axis=1))),
      'queries': float(measured.points),
  }
