"""Comparison of models with a baseline: differences, and their significance."""

from collections.abc import Iterator, Sequence
import dataclasses
import math
import pathlib

import numpy as np

from dualenc_jax.evaluation import metrics as metrics_lib
from dualenc_jax.evaluation.results import (
  benchmarks,
  result_files,
  significance,
)
from dualenc_jax.evaluation.results.benchmarks import EvaluatedSet
from dualenc_jax.evaluation.results.result_files import (
  Key,
  Model,
  Result,
)
from dualenc_jax.utils.errors import UserError

# Results that differ in one of these have other queries, or another corpus.
_OF_DATA = (
    'source', 'queries', 'corpus', 'passages', 'document_separator', 'depth',
    'relevance_level',
)
# Metrics that are reported when training ends, the first that exists.
_OF_TRAINING = ('MRR', 'nDCG@10', 'Top-20', 'log_likelihood')


@dataclasses.dataclass(eq=False)
class Difference:
  """A model against the baseline, by one metric on one set.

  Attributes:
    baseline_value: a share of 0 to 1.
    better: queries on which the model has the greater value.
    p: of the paired randomization test.
    p_holm: corrected for all sets and models by this metric.
  """

  evaluated: EvaluatedSet
  metric: str
  model: str
  baseline_value: float
  value: float
  better: int
  equal: int
  worse: int
  p: float
  p_holm: float = math.nan

  @property
  def set_name(self) -> str:
    return self.evaluated.full_name

  @property
  def difference(self) -> float:
    return self.value - self.baseline_value

  @property
  def relative(self) -> float | None:
    """The improvement as a share of the baseline's value, None if that is 0."""
    if not self.baseline_value:
      return None
    return self.difference / self.baseline_value

  @property
  def queries(self) -> int:
    return self.better + self.equal + self.worse


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
  """Models against a baseline.

  Attributes:
    differences: by set, metric and model, in this order.
    left_out: results that not all models have, or not by these metrics, and
      metrics that not all have on a set, in words.
    missing: systems that were to be compared and have no results.
  """

  baseline: Model
  models: tuple[Model, ...]
  differences: tuple[Difference, ...]
  left_out: tuple[str, ...]
  missing: tuple[str, ...] = ()


def compare(
    baseline: Model, models: Sequence[Model],
    metrics: Sequence[str] | None = None, missing: Sequence[str] = (),
) -> Comparison:
  """Compares models with a baseline on all sets that they have in common.

  Metrics are by default those that the papers report on each task. `missing`
  describes systems without results.

  Raises:
    UserError: no set or metric in common, results of other queries or of
      another corpus, or per-query values that cannot be read.
  """
  everyone = [baseline, *models]
  keys = _common_keys(everyone)
  sets = benchmarks.group(keys)
  by_set = _metrics_by_set(sets, everyone, metrics)
  compared = {key for s in sets if by_set[s] for key in s.keys}
  for key in sorted(keys, key=str):
    for model in models:
      _check_same(baseline.results[key], model.results[key])
  differences = [
      _difference(evaluated, metric, baseline, model)
      for evaluated in sets
      for metric in by_set[evaluated]
      for model in models
  ]
  for metric in {d.metric for d in differences}:
    family = [d for d in differences if d.metric == metric]
    corrected = significance.holm([d.p for d in family])
    for difference, p in zip(family, corrected):
      difference.p_holm = p
  left_out = {key for model in everyone for key in model.results} - compared
  lacking = [
      f'{metric} on {s.full_name}'
      for s in sets if by_set[s]
      for metric in dict.fromkeys(metrics or ()) if metric not in by_set[s]
  ]
  return Comparison(
      baseline,
      tuple(models),
      tuple(differences),
      (*sorted(map(str, left_out)), *lacking),
      tuple(missing),
  )


def _common_keys(models: Sequence[Model]) -> set[Key]:
  common = set.intersection(*({*model.results} for model in models))
  if not common:
    sets = '; '.join(dict.fromkeys(
        f'{model.where} has {", ".join(sorted(map(str, model.results)))}'
        for model in models
    ))
    raise UserError(
        f'The results have no task and split in common: {sets}. Evaluate all'
        ' systems on the same ones.'
    )
  return common


def _check_same(baseline: Result, result: Result) -> None:
  """Raises UserError for two results of different queries or corpora."""
  for field in _OF_DATA:
    one, other = (r.provenance.get(field) for r in (baseline, result))
    if one == other:
      continue
    hint = 'Evaluate both on the same data and by the same flags.'
    if field == 'depth' and result.key.task == 'run':
      hint = '--k uses equally many hits of both.'
    raise UserError(
        f'{baseline.where} and {result.where} differ in "{field}":'
        f' {one} and {other}. {hint}'
    )


def _metrics_by_set(
    sets: Sequence[EvaluatedSet], models: Sequence[Model],
    wanted: Sequence[str] | None,
) -> dict[EvaluatedSet, list[str]]:
  """The wanted metrics that all models have, by default the papers'."""
  wanted = list(dict.fromkeys(wanted or ()))
  known = list(dict.fromkeys(
      metric
      for evaluated in sets
      for key in evaluated.keys
      for model in models
      for metric in model.results[key].metrics
  ))
  if unknown := next((m for m in wanted if m not in known), None):
    metrics_lib.parse(unknown)
    raise UserError(
        f'--metrics: no result has {unknown}. Measure it: `dualenc evaluate'
        f' --metrics={unknown}`.'
    )
  chosen: dict[EvaluatedSet, list[str]] = {}
  for evaluated in sets:
    common = {
        metric for metric in known
        if all(evaluated.value(model, metric) is not None for model in models)
    }
    of_papers = benchmarks.paper_metrics(evaluated.keys[0])
    defaults = [of_papers, benchmarks.OTHER_METRICS]
    choices = (
        [metric for metric in choice if metric in common]
        for choice in ([wanted] if wanted else defaults)
    )
    chosen[evaluated] = next(filter(None, choices), [])
  if not any(chosen.values()):
    for metric in wanted:
      for model in models:
        if all(s.value(model, metric) is None for s in sets):
          raise UserError(
              f'--metrics: {model.where} has no {metric}. Evaluate it again by'
              f' --metrics={metric}, or leave it out.'
          )
    raise UserError(
        'The results have none of these metrics in common. Choose --metrics of'
        f' {", ".join(known)}.'
    )
  return chosen


def _difference(
    evaluated: EvaluatedSet, metric: str, baseline: Model, model: Model
) -> Difference:
  # Values of a set of several parts are weighted such that their mean is the
  # mean of the parts' means.
  parts = [
      _paired(baseline.results[key], model.results[key], metric)
      for key in evaluated.keys
  ]
  total = sum(map(len, parts))
  weighted = [part * (total / (len(parts) * len(part))) for part in parts]
  one, other = np.concatenate(weighted).T
  return Difference(
      evaluated=evaluated,
      metric=metric,
      model=model.name,
      baseline_value=math.fsum(one) / len(one),
      value=math.fsum(other) / len(other),
      better=int((other > one).sum()),
      equal=int((other == one).sum()),
      worse=int((other < one).sum()),
      p=significance.randomization_test(one, other),
  )


def _paired(baseline: Result, result: Result, metric: str) -> np.ndarray:
  """float64 [Q, 2], the values of both for the same queries."""
  one, other = (r.per_query().column(metric) for r in (baseline, result))
  if alone := sorted(one.keys() ^ other.keys()):
    raise UserError(
        f'{baseline.where} and {result.where} have different queries with'
        f' {metric}: only one of them has {len(alone):,}, such as {alone[0]}.'
        ' Evaluate both on the same data.'
    )
  return np.array([(value, other[query]) for query, value in one.items()])


def verdict_of_training(model_dir: pathlib.Path) -> Iterator[str]:
  """Yields lines on each sub-corpus: before training, after, and p."""
  pattern = f'{result_files.VALIDATION}/**/{result_files.AFTER}'
  for after in sorted(model_dir.glob(pattern)):
    group = after.parent.relative_to(model_dir)
    paired = _pair_files(after.with_name(result_files.BEFORE), after)
    if paired is None:
      continue
    metric, pair = paired
    yield (
        f'{group}, {pair.queries:,} queries, before training and after:'
        f' {pair.describe(metric)}.'
    )
    if pair.after < pair.before and pair.p < 0.05:
      yield (
          f'WARNING: {group} is worse than before training. Look at the data by'
          ' `dualenc data check`, or try a lower LEARNING_RATE.'
      )
    if paired := _pair_files(after.with_name(result_files.OF_BM25), after):
      metric, pair = paired
      yield f'{group}, BM25 and re-ranked: {pair.describe(metric)}.'
      if pair.after <= pair.before:
        yield (
            'WARNING: the cross-encoder does not improve on BM25; do not use it'
            ' as a teacher yet.'
        )


def _pair_files(
    before: pathlib.Path, after: pathlib.Path
) -> tuple[str, significance.Paired] | None:
  """A metric that both files have, of the same queries, and its values."""
  if not (before.exists() and after.exists()):
    return None
  one, other = map(result_files.read_per_query, (before, after))
  metric = next((m for m in _OF_TRAINING if m in one.values), None)
  if metric is None or one.queries != other.queries:
    return None
  return metric, significance.paired(one.values[metric], other.values[metric])
