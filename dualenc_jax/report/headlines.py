"""The few numbers at the top of the page."""

from collections.abc import Sequence
import dataclasses

from dualenc_jax.report import curves
from dualenc_jax.report.axis import precise
from dualenc_jax.report.material import Material
from dualenc_jax.results import benchmarks
from dualenc_jax.results.benchmarks import Benchmark
from dualenc_jax.results.folder import Model

# Of a single evaluation, the first four that it has.
_ONE_SET = ('P@1', 'MRR', 'nDCG@10', 'Recall@100', 'Top-20', 'Top-100')
_VALIDATION = ('validation/MRR', 'validation/P_1', 'validation/nDCG_10')
_MOST = 4
# Sets that count in the papers' averages.
_AVERAGED = {
    Benchmark.QA: benchmarks.QA_NAMES,
    Benchmark.BEIR: benchmarks.BEIR_NAMES,
}


@dataclasses.dataclass(frozen=True)
class Headline:
  """A number: what it is, its text, and what it was measured on."""

  name: str
  value: str
  unit: str
  where: str


def of(material: Material, model: Model) -> list[Headline]:
  """Results if there are any, else those of validation; then the loss."""
  found = _of_results(model)[:_MOST]
  curve = material.curves
  if not found:
    found = [
        _share(
            curves.title(name),
            curve[name].values[-1],
            f'validation, step {curve[name].steps[-1]:,}',
        )
        for name in _VALIDATION
        if name in curve
    ]
  if 'train/loss' in curve:
    series = curve['train/loss']
    where = f'training, step {series.steps[-1]:,}'
    found.append(Headline('loss', precise(series.values[-1]), '', where))
  return found


def _of_results(model: Model) -> list[Headline]:
  sets = benchmarks.group(model.results)
  if len(sets) == 1:
    (only,) = sets
    where = f'{only.name} {only.split}'
    values = {metric: only.value(model, metric) for metric in _ONE_SET}
    return [
        _share(metric, value, where)
        for metric, value in values.items()
        if value is not None
    ]
  found = []
  for benchmark in Benchmark:
    ours = [s for s in sets if s.benchmark is benchmark]
    names = _AVERAGED.get(benchmark)
    if names and (counted := [s for s in ours if s.name in names]):
      found += _mean(model, counted, benchmark.value)
    else:
      for one in ours:
        found += _mean(model, [one], '')
  return found


def _mean(model: Model, sets: Sequence, benchmark: str) -> list[Headline]:
  """The mean over sets of the last metric that the papers report on them."""
  metric = benchmarks.paper_metrics(sets[0])[-1]
  values = [s.value(model, metric) for s in sets]
  if None in values:
    return []
  where = f'mean of {len(sets)} {benchmark} sets'
  if len(sets) == 1:
    where = f'{sets[0].name} {sets[0].split}'
  return [_share(metric, sum(values) / len(values), where)]


def _share(name: str, share: float, where: str) -> Headline:
  return Headline(name, f'{100 * share:.1f}', '%', where)
