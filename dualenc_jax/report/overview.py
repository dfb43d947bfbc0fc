"""The top of the page: what the model is, and how good, at a glance."""

from collections.abc import Iterator, Sequence
import dataclasses

from dualenc_jax.report import card
from dualenc_jax.report.contents import Contents
from dualenc_jax.report.markup import Html, precise, tag
from dualenc_jax.results import benchmarks
from dualenc_jax.results.benchmarks import Benchmark, EvaluatedSet
from dualenc_jax.results.folder import BASELINES, Model

BM25 = BASELINES[0]
# Of a single evaluation, the first four that it has.
_ONE_SET = ('P@1', 'MRR', 'nDCG@10', 'Recall@100', 'Top-20', 'Top-100')
_VALIDATION = ('MRR', 'P@1', 'nDCG@10', 'token_accuracy')
_MOST = 4
# Sets that count in the papers' averages.
_AVERAGED = {
    Benchmark.QA: benchmarks.QA_NAMES,
    Benchmark.BEIR: benchmarks.BEIR_NAMES,
}
# Settings that a reader asks for first.
_SHOWN = (
    'LOSS MODEL OPTIMIZER BATCH_SIZE NUM_NEGATIVES LEARNING_RATE QUERY_LENGTH'
    ' PASSAGE_LENGTH DTYPE SEED INITIAL_CHECKPOINT_PATH'
).split()

# A number in large: what it is, its text, and what it was measured on.
Headline = tuple[str, str, str]


def render(contents: Contents, model: Model) -> Html:
  """Name, what it is, and its numbers in large."""
  numbers = [
      tag('p', tag('span', name), tag('b', value), tag('small', where))
      for name, value, where in headlines(contents, model)
  ]
  settings = {name: contents.settings.get(name, 'None') for name in _SHOWN}
  facts = [
      tag(
          'div',
          tag('dt', name.lower().replace('_', ' ')),
          tag('dd', value.strip("'@()")),
      )
      for name, value in settings.items()
      if value != 'None'
  ]
  return tag(
      'header',
      tag('p', 'dualenc report', class_='kind'),
      tag('h1', contents.name),
      tag('p', contents.task, class_='what'),
      tag('p', progress(contents), class_='note'),
      *([tag('div', *numbers, class_='numbers')] if numbers else []),
      tag('dl', *facts, class_='facts'),
  )


def progress(contents: Contents) -> str:
  """How far the training is, and since when."""
  steps = contents.settings.get('STEPS', '?')
  if steps.isdecimal():
    steps = f'{int(steps):,}'
  if contents.checkpoint is None:
    return f'No checkpoint yet, of {steps} steps'
  words = f'Checkpoint of step {contents.checkpoint.step:,} of {steps}'
  saved, best = contents.checkpoint.saved, contents.checkpoint.best
  words += f', {saved:%-d %B %Y, %H:%M} UTC' if saved else ''
  if best:
    words += (
        f'; the model is that of step {best["step"]:,}, the best by'
        f' {best["metric"]} ({best["value"]:.4f})'
    )
  if contents.checkpoint.ended:
    words += f'; ended early: {contents.checkpoint.ended}'
  return words


def headlines(contents: Contents, model: Model) -> Iterator[Headline]:
  """Results if there are any, else those of validation; then the loss."""
  bm25 = {
      e.result.key: dataclasses.replace(e.result, metrics=e.beside[BM25])
      for e in contents.evaluations
      if BM25 in e.beside
  }
  baseline = Model(BM25, model.where, bm25)
  found = list(_of_results(model, baseline))[:_MOST]
  yield from found
  shown = [] if found else [f'validation/{name}' for name in _VALIDATION]
  for name in (*shown, 'train/loss'):
    if curve := contents.curves.get(name):
      step, value = list(curve.items())[-1]
      group, _, metric = name.partition('/')
      share = group == 'validation'
      text = _percent(value) if share else precise(value)
      where = group if share else 'training'
      yield metric, text, f'{where}, step {step:,}'


def _of_results(model: Model, baseline: Model) -> Iterator[Headline]:
  sets = benchmarks.group(model.results)
  if len(sets) == 1:
    yield from _means(model, baseline, sets, _ONE_SET, '')
    return
  for benchmark in Benchmark:
    ours = [s for s in sets if s.benchmark is benchmark]
    counted = [s for s in ours if s.name in _AVERAGED.get(benchmark, ())]
    for group in [counted] if counted else [[one] for one in ours]:
      # The last metric that the papers report on them.
      metrics = benchmarks.paper_metrics(group[0])[-1:]
      yield from _means(model, baseline, group, metrics, benchmark.value)


def _means(
    model: Model,
    baseline: Model,
    sets: Sequence[EvaluatedSet],
    metrics: Sequence[str],
    benchmark: str,
) -> Iterator[Headline]:
  """The means over sets of those metrics that all of them have, and BM25's."""
  where = f'mean of {len(sets)} {benchmark} sets'
  if len(sets) == 1:
    (key, *others) = sets[0].keys
    where = f'{sets[0].name} {sets[0].split}'
    if not others and sets[0].benchmark is Benchmark.OTHER:
      where = card.set_name(model.results[key])
  for metric in metrics:
    values = [s.value(model, metric) for s in sets]
    if None not in values:
      bm25 = [s.value(baseline, metric) for s in sets]
      told = '' if None in bm25 else f'; BM25 {_percent(_mean(bm25))}'
      yield metric, _percent(_mean(values)), where + told


def _mean(values: Sequence[float]) -> float:
  return sum(values) / len(values)


def _percent(share: float) -> str:
  return f'{100 * share:.1f} %'
