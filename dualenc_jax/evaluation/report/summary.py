"""The summary of a model: its card, and the parts its folder lacks."""

from collections.abc import Iterator, Mapping, Sequence
import re
import shlex
from typing import Any

from dualenc_jax.evaluation.report.contents import ABOUT, CONFIG, Contents
from dualenc_jax.evaluation.results import benchmarks
from dualenc_jax.evaluation.results.benchmarks import Benchmark, EvaluatedSet
from dualenc_jax.evaluation.results.result_files import (
  BASELINES,
  describe_copies,
  describe_overlap,
  Model,
  Result,
  TRAIN_OVERLAP,
)

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
_MEASURED = 'VALIDATION', 'TEST'
# Settings that a reader asks for first.
_SHOWN = (
    'LOSS MODEL OPTIMIZER BATCH_SIZE NUM_NEGATIVES LEARNING_RATE QUERY_LENGTH'
    ' PASSAGE_LENGTH DTYPE SEED INITIAL_CHECKPOINT_PATH'
).split()
# Parameters of readers that say which data it is.
_SOURCES = 'train|path|queries|dataset|folder|files|hard_negatives'
_USES = {
    'Ranking': 'Orders the passages that a retriever has found for a query, by'
    ' a score for each pair. It searches nothing itself.',
    'Generation': 'Writes queries that a passage may answer, as training data'
    ' for a retriever. What it writes is not checked for truth.',
    '': 'Finds the passages that answer a query: both are embedded as vectors'
    ' of norm one, and the inner product of two says how near they are. Scores'
    ' order passages; they are not probabilities.',
}

# A number in large: what it is, its text, and what it was measured on.
Headline = tuple[str, str, str]


def settings(contents: Contents) -> Iterator[tuple[str, str]]:
  """Names and values of settings that are not None."""
  for name in _SHOWN:
    if (value := contents.settings.get(name, 'None')) != 'None':
      yield name.lower().replace('_', ' '), value.strip("'@()")


def progress(contents: Contents) -> str:
  """How far the training is, and since when."""
  steps = contents.settings.get('STEPS', '?')
  if steps.isdecimal():
    steps = f'{int(steps):,}'
  if contents.step is None:
    return f'No checkpoint yet, of {steps} steps'
  words = f'Checkpoint of step {contents.step:,} of {steps}'
  if contents.saved:
    words += f', {contents.saved:%-d %B %Y, %H:%M} UTC'
  if best := contents.best:
    words += (
        f'; the model is that of step {best["step"]:,}, the best by'
        f' {best["metric"]} ({best["value"]:.4f})'
    )
  return words + (f'; ended early: {contents.ended}' if contents.ended else '')


def precise(value: float) -> str:
  """A value to four digits, whole numbers in full."""
  return f'{value:,.0f}' if abs(value) >= 1000 else f'{value:.4g}'


def headlines(contents: Contents, model: Model) -> Iterator[Headline]:
  """Results if there are any, else those of validation; then the loss."""
  bm25 = {
      e.result.key: e.beside[BM25]
      for e in contents.evaluations
      if BM25 in e.beside
  }
  others = _of_others(contents)
  baseline = Model(BM25, model.where, bm25)
  found = list(_of_results(model, baseline, others))[:_MOST]
  yield from found
  shown = [] if found else [f'validation/{name}' for name in _VALIDATION]
  for name in (*shown, 'train/loss'):
    if curve := contents.curves.get(name):
      step, value = list(curve.items())[-1]
      group, _, metric = name.partition('/')
      text = _percent(value) if group == 'validation' else precise(value)
      yield metric, text, f'{group.replace("train", "training")}, step {step:,}'


def _of_others(contents: Contents) -> dict[Any, str]:
  """What evaluations are of, if not of the model as it is, by key."""
  results = [evaluation.result for evaluation in contents.evaluations]
  return {r.key: w for r in results if (w := contents.other_checkpoint(r))}


def _of_results(
    model: Model, baseline: Model, others: Mapping[Any, str]
) -> Iterator[Headline]:
  sets = benchmarks.group(model.results)
  if len(sets) == 1:
    yield from _means(model, baseline, sets, _ONE_SET, others)
    return
  for benchmark in Benchmark:
    ours = [s for s in sets if s.benchmark is benchmark]
    counted = [s for s in ours if s.name in _AVERAGED.get(benchmark, ())]
    for group in [counted] if counted else [[one] for one in ours]:
      # The last metric that the papers report on them.
      metrics = benchmarks.paper_metrics(group[0])[-1:]
      yield from _means(model, baseline, group, metrics, others)


def _means(
    model: Model, baseline: Model, sets: Sequence[EvaluatedSet],
    metrics: Sequence[str], others: Mapping[Any, str],
) -> Iterator[Headline]:
  """The means over sets of those metrics that all of them have, and BM25's."""
  first = sets[0]
  where = f'mean of {len(sets)} {first.benchmark.value} sets'
  if len(sets) == 1:
    where = f'{first.name} {first.split}'
    if len(first.keys) == 1 and first.benchmark is Benchmark.OTHER:
      where = set_name(model.results[first.keys[0]])
  keys = {key: None for s in sets for key in s.keys if key in others}
  for what in dict.fromkeys(others[key].partition(', ')[0] for key in keys):
    where += f', {what}'
  for metric in metrics:
    own, bm25 = (
        [v for s in sets if (v := s.value(system, metric)) is not None]
        for system in (model, baseline)
    )
    if len(own) == len(sets):
      beside = f'; BM25 {_percent(*bm25)}' if len(bm25) == len(sets) else ''
      yield metric, _percent(*own), where + beside


def _percent(*shares: float) -> str:
  return f'{100 * (sum(shares) / len(shares)):.1f} %'


def set_name(result: Result) -> str:
  """'pairs (held_out.jsonl), test': what was measured, by its files too."""
  names, label = _joined(result.provenance.get('files')), result.key.label
  if names and names not in label:
    label += f' ({names})'
  return f'{label}, {result.key.split}'


def _joined(files: object) -> str:
  """Names of files as evaluations have them, by parameter."""
  if isinstance(files, dict):
    files = [*files.values()]
  if isinstance(files, list):
    return ', '.join(filter(None, map(_joined, files)))
  return str(files or '')


def card(contents: Contents) -> Iterator[tuple[str, str]]:
  """What a model card has: use, data, limits."""
  own, kind = contents.settings, contents.settings.get('OBJECTIVE', '')
  yield 'Intended use', next(text for k, text in _USES.items() if k in kind)
  if limits := ', '.join(
      f'{text} of {length} tokens at most'
      for text, name in (('queries', 'QUERY'), ('passages', 'PASSAGE'))
      if (length := own.get(f'{name}_LENGTH'))
  ):
    yield 'Input', f'{limits}; the rest of longer ones is cut off.'
  trained = [contents.task, *_sources(contents)]
  data = contents.meta.get('data', {})
  examples, batch = data.get('examples'), data.get('global_batch')
  if isinstance(examples, int):
    trained.append(f'{examples:,} examples')
    if isinstance(batch, int) and examples and contents.step is not None:
      times = contents.step * batch / examples
      trained.append(f'each seen {times:.3g} times')
  yield 'Trained on', ', '.join(filter(None, trained))
  start = own.get('INITIAL_CHECKPOINT_PATH', 'None').strip('\'"')
  yield 'Started from', 'random values' if start == 'None' else start
  for result in (evaluation.result for evaluation in contents.evaluations):
    facts = result.provenance
    sizes = [(facts.get(name), name) for name in ('queries', 'passages')]
    counts = ', '.join(f'{n:,} {name}' for n, name in sizes if n is not None)
    yield 'Measured on', ': '.join(filter(None, [set_name(result), counts]))
    if found := facts.get(TRAIN_OVERLAP):
      yield '', describe_overlap(found)
    if copies := describe_copies(facts):
      yield '', copies
  limits = (
      'Only what is listed here was measured. Texts of another subject,'
      ' language or length may be found less well: an evaluation on some of'
      ' them tells. What training data prefers, a model prefers.'
  )
  if not contents.about:
    limits += (
        ' Nobody has written of licence, languages and known faults yet: do so'
        f' in {ABOUT} of the model_dir, which is shown here.'
    )
  yield 'Limits', limits


def _sources(contents: Contents) -> Iterator[str]:
  """Files and names of data sets that the config binds to the task's reader."""
  reader = re.escape(contents.settings.get('TASK', '').strip('@()'))
  pattern = rf'^{reader}\.(?:{_SOURCES}) = (?:\\\n\s*)?(.*)$'
  for value in re.findall(pattern, contents.config, re.MULTILINE):
    value = contents.settings.get(value[1:], value)
    if value != 'None':
      yield value.strip('\'"')


def missing(contents: Contents) -> Iterator[tuple[str, str]]:
  """What is missing, and the command that makes it, '' where none is known."""
  folder = shlex.quote(contents.command_path)
  config = shlex.quote(f'{contents.command_path.rstrip("/")}/{CONFIG}')
  train = f'dualenc train --gin_file={config} --model_dir={folder}'
  steps, done = contents.settings.get('STEPS', ''), contents.step or 0
  if not done:
    yield 'There is no checkpoint yet.', train
  elif steps.isdecimal() and done < int(steps) and not contents.ended:
    yield f'Training is at step {done:,} of {int(steps):,}.', train
  if done and not contents.curves:
    yield 'There are no curves: training has left no metrics.jsonl.', train
  kind = contents.settings.get('OBJECTIVE', '')
  if 'Ranking' in kind:
    yield (
        'A cross-encoder is measured by the runs that it re-ranks.',
        f'dualenc rerank --teacher={folder} --run=run.trec --tasks=...',
    )
  if 'Ranking' in kind or 'Generation' in kind:
    # They embed nothing.
    return
  measured = {e.result.key.split for e in contents.evaluations}
  # Of pairs without a file to measure on.
  if measured == {'train'} or all(
      contents.settings.get(f'{s}_FILE') == 'None' for s in _MEASURED
  ):
    folder += ' --split=train'
  if not contents.evaluations:
    yield (
        'There is no evaluation yet.',
        f'dualenc evaluate --model_dir={folder}',
    )
  others = _of_others(contents)
  for evaluation in contents.evaluations:
    facts, name = evaluation.result.provenance, evaluation.name
    again = str(facts.get('command', ''))
    if what := others.get(evaluation.result.key):
      yield f'The evaluation {name} is {what}.', again
    elif evaluation.examples is None:
      yield f'The evaluation {name} has no examples.', again
  if contents.evaluations and not any(
      e.codecs or 'codec' in e.result.provenance for e in contents.evaluations
  ):
    again = str(contents.evaluations[0].result.provenance.get('command', ''))
    more = ' --baselines= --codecs=fp16,int8,binary'
    yield 'No codecs were measured.', again and again + more
  if not contents.analyses:
    yield (
        'There are no figures of the embedding space.',
        f'dualenc analyze --model_dir={folder}',
    )
