"""Models against a baseline: differences, and whether they may be chance."""

from collections.abc import Collection, Sequence
import dataclasses
import math
import shlex

import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.results import benchmarks, pairing, significance
from dualenc_jax.results.benchmarks import EvaluatedSet
from dualenc_jax.results.folder import Key, Model
from dualenc_jax.suggest import did_you_mean


@dataclasses.dataclass(frozen=True)
class Options:
  """How to compare.

  Attributes:
    metrics: which, each counts once; None for those that the papers report on
      each task.
    common_queries: use the queries that both have, instead of refusing results
      of different ones.
    permutations: of the randomization test, where it is not exact.
    seed: of these.
  """

  metrics: Sequence[str] | None = None
  common_queries: bool = False
  permutations: int = 10_000
  seed: int = 0


@dataclasses.dataclass(frozen=True)
class Difference:
  """A model against the baseline, by one metric on one set.

  Attributes:
    evaluated: the set.
    set_name: its name beside the other sets'.
    metric: its name.
    model: the model's name.
    baseline_value: a share of 0 to 1.
    value: the model's.
    better: queries on which the model has the greater value.
    equal: queries on which both have the same.
    worse: queries on which the baseline has the greater value.
    t_test: p of the paired t-test; None where it does not apply.
    t_test_holm: the same, corrected for all sets and models by this metric.
    randomization: p of the paired randomization test.
    randomization_holm: the same, corrected.
  """

  evaluated: EvaluatedSet
  set_name: str
  metric: str
  model: str
  baseline_value: float
  value: float
  better: int
  equal: int
  worse: int
  t_test: float | None
  t_test_holm: float | None
  randomization: float
  randomization_holm: float

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
  """All differences.

  Attributes:
    baseline: what the others are compared with.
    models: the others.
    options: how they were compared.
    differences: by set, metric and model, in this order.
    left_out: results that not all of them have, or not by these metrics.
  """

  baseline: Model
  models: tuple[Model, ...]
  options: Options
  differences: tuple[Difference, ...]
  left_out: tuple[Key, ...]


def compare(
    baseline: Model, models: Sequence[Model], options: Options = Options()
) -> Comparison:
  """Compares models with a baseline on all sets that they have in common.

  Args:
    baseline: the first.
    models: the others, with different names.
    options: how.

  Raises:
    UserError: no set or metric in common, results that are not of the same
      queries and corpus, or per-query values that cannot be read.
  """
  everyone = [baseline, *models]
  keys = _common_keys(everyone)
  sets = benchmarks.group(keys)
  metrics = _metrics_by_set(sets, everyone, options.metrics)
  compared = {key for s in sets if metrics[s] for key in s.keys}
  _check_same(everyone, keys, compared, options.common_queries)
  all_keys = {key for model in everyone for key in model.results}
  differences = []
  for evaluated, name in zip(sets, benchmarks.distinct_names(sets)):
    for metric in metrics[evaluated]:
      for model in models:
        values = pairing.paired(
            baseline, model, evaluated, metric, options.common_queries
        )
        differences.append(
            _difference(evaluated, name, metric, model.name, *values, options)
        )
  return Comparison(
      baseline,
      tuple(models),
      options,
      _corrected(differences),
      tuple(sorted(all_keys - compared, key=str)),
  )


def _common_keys(models: Sequence[Model]) -> set[Key]:
  common = set.intersection(*({*model.results} for model in models))
  if not common:
    found = '; '.join(
        f'{model.where} has {", ".join(sorted(map(str, model.results)))}'
        for model in {model.where: model for model in models}.values()
    )
    raise UserError(
        f'There is no task and split that all have results on: {found}.'
        ' Evaluate all of them on the same ones.'
    )
  return common


def _check_same(
    models: Sequence[Model],
    keys: Collection[Key],
    compared: Collection[Key],
    common_queries: bool,
) -> None:
  """Refuses results of different queries or corpora.

  Raises:
    UserError: the first such difference; names the folders of a set that can
      be compared all the same.
  """
  baseline, *others = models
  refused = {}
  for key in sorted(keys, key=str):
    for model in others:
      try:
        pairing.check_same(
            baseline.results[key], model.results[key], common_queries
        )
      except UserError as e:
        refused.setdefault(key, e)
  if not refused:
    return
  first = next(iter(refused.values()))
  fine = sorted({*compared} - refused.keys(), key=str)
  if not fine:
    raise first
  folders = (shlex.quote(model.results[fine[0]].where) for model in models)
  raise UserError(
      f'{first} Result folders can be compared one by one, {fine[0]} by'
      f' `dualenc compare {" ".join(folders)}`.'
  ) from first


def _metrics_by_set(
    sets: Sequence[EvaluatedSet],
    models: Sequence[Model],
    wanted: Sequence[str] | None,
) -> dict[EvaluatedSet, list[str]]:
  """Those of the wanted metrics, by default the papers', that all have.

  Raises:
    UserError: a wanted metric that no set has, or not of all models; or nothing
      to compare.
  """
  wanted = list(dict.fromkeys(wanted or ()))
  known = {
      metric: None
      for evaluated in sets
      for key in evaluated.keys
      for model in models
      for metric in model.results[key].metrics
  }
  for metric in wanted:
    if metric not in known:
      raise UserError(
          f'--metrics: no result has {metric!r}.{did_you_mean(metric, known)}'
          f' Metrics: {", ".join(known)}.'
      )
  chosen = {}
  for evaluated in sets:
    of_models = [
        {m for m in known if evaluated.value(model, m) is not None}
        for model in models
    ]
    for metric in wanted:
      lacking = [
          model.where
          for model, there in zip(models, of_models)
          if metric not in there
      ]
      if 0 < len(lacking) < len(models):
        raise UserError(
            f'{lacking[0]} has no {metric} on {evaluated.name}, unlike others.'
            ' Evaluate it again, or choose other --metrics.'
        )
    common = set.intersection(*of_models)
    defaults = (benchmarks.paper_metrics(evaluated), benchmarks.OTHER_METRICS)
    candidates = (wanted,) if wanted else defaults
    found = ([m for m in those if m in common] for those in candidates)
    chosen[evaluated] = next(filter(None, found), [])
  if not any(chosen.values()):
    raise UserError(
        'The results have none of the default metrics in common. Choose'
        f' --metrics of {", ".join(known)}.'
    )
  return chosen


def _difference(
    evaluated: EvaluatedSet,
    name: str,
    metric: str,
    model: str,
    baseline: np.ndarray,
    values: np.ndarray,
    options: Options,
) -> Difference:
  t_test = significance.paired_t_test(baseline, values)
  randomization = significance.randomization_test(
      baseline, values, options.permutations, options.seed
  )
  return Difference(
      evaluated=evaluated,
      set_name=name,
      metric=metric,
      model=model,
      baseline_value=math.fsum(baseline) / len(baseline),
      value=math.fsum(values) / len(values),
      better=int((values > baseline).sum()),
      equal=int((values == baseline).sum()),
      worse=int((values < baseline).sum()),
      t_test=t_test,
      t_test_holm=t_test,
      randomization=randomization,
      randomization_holm=randomization,
  )


def _corrected(differences: Sequence[Difference]) -> tuple[Difference, ...]:
  """With p values corrected for all sets and models of the same metric."""
  corrected = list(differences)
  for metric in {d.metric for d in differences}:
    family = [i for i, d in enumerate(differences) if d.metric == metric]
    own = [differences[i] for i in family]
    t_tests = significance.holm([d.t_test for d in own])
    randomizations = significance.holm([d.randomization for d in own])
    for i, t_test, randomization in zip(family, t_tests, randomizations):
      corrected[i] = dataclasses.replace(
          differences[i],
          t_test_holm=t_test,
          randomization_holm=randomization,
      )
  return tuple(corrected)
