"""The summary of a model: key numbers, its card, and what is missing."""

from collections.abc import Iterator
import shlex

from dualenc_jax.evaluation.report.contents import CONFIG, Contents
from dualenc_jax.evaluation.results import benchmarks
from dualenc_jax.evaluation.results.result_files import (
  describe_copies,
  describe_outdated,
  size,
)

# The metrics of the headlines without an evaluation.
_VALIDATION = ('MRR', 'P@1', 'nDCG@10', 'token_accuracy')
_MOST = 4
_MEASURED = 'VALIDATION', 'TEST'
# Settings that a reader asks for first.
_SHOWN = (
    'LOSS MODEL OPTIMIZER BATCH_SIZE NUM_NEGATIVES LEARNING_RATE QUERY_LENGTH'
    ' PASSAGE_LENGTH DTYPE SEED INITIAL_CHECKPOINT_PATH'
).split()
# A number in large: its name, its text, and what it was measured on.
Headline = tuple[str, str, str]


def settings(contents: Contents) -> Iterator[tuple[str, str]]:
  """Yields names and values of settings that are not None."""
  for name in _SHOWN:
    if (value := contents.settings.get(name, 'None')) != 'None':
      yield name.lower().replace('_', ' '), value.strip("'@()")


def progress(contents: Contents) -> str:
  """How far the training is."""
  steps = contents.settings.get('STEPS', '?')
  if steps.isdecimal():
    steps = f'{int(steps):,}'
  if contents.step is None:
    return f'No checkpoint yet, of {steps} steps'
  words = f'Checkpoint of step {contents.step:,} of {steps}'
  if best := contents.best:
    words += (
        f'; the model is that of step {best["step"]:,}, the best by'
        f' {best["metric"]} ({best["value"]:.4f})'
    )
  return words + (f'; ended early: {contents.ended}' if contents.ended else '')


def precise(value: float) -> str:
  """A value to four digits, whole numbers in full."""
  return f'{value:,.0f}' if abs(value) >= 1000 else f'{value:.4g}'


def headlines(contents: Contents) -> Iterator[Headline]:
  """Yields the first results, or else those of validation, and the loss."""
  results = list(_headlines_of_results(contents))[:_MOST]
  yield from results
  curves = next(iter(contents.runs.values()))
  shown = [] if results else [f'validation/{name}' for name in _VALIDATION]
  for name in (*shown, 'train/loss'):
    if curve := curves.get(name):
      step, value = list(curve.items())[-1]
      group, _, metric = name.partition('/')
      text = _percent(value) if group == 'validation' else precise(value)
      yield metric, text, f'{group.replace("train", "training")}, step {step:,}'


def _headlines_of_results(contents: Contents) -> Iterator[Headline]:
  """The papers' metrics of each evaluation."""
  bm25 = {
      key: result.metrics
      for system in contents.systems if system.name == 'BM25'
      for key, result in system.results.items()
  }
  for result in (evaluation.result for evaluation in contents.evaluations):
    for metric in benchmarks.paper_metrics(result.key):
      if metric in result.metrics:
        where = str(result.key)
        if outdated := describe_outdated(result):
          where += f', {outdated.partition(", ")[0]}'
        if known := bm25.get(result.key):
          where += f'; BM25 {_percent(known[metric])}'
        yield metric, _percent(result.metrics[metric]), where


def _percent(share: float) -> str:
  return f'{100 * share:.1f} %'


def card(contents: Contents) -> Iterator[tuple[str, str]]:
  """Yields the rows of a model card on its data."""
  trained = contents.task
  examples = contents.meta.get('data', {}).get('examples')
  if examples is not None:
    trained += f', {examples:,} examples'
  yield 'Trained on', trained
  for result in (evaluation.result for evaluation in contents.evaluations):
    facts = result.provenance
    yield 'Measured on', ': '.join(filter(None, [str(result.key), size(facts)]))
    if copies := describe_copies(facts):
      yield '', copies


def missing(contents: Contents) -> Iterator[tuple[str, str]]:
  """Yields the missing parts, each with the command that makes it."""
  folder = shlex.quote(contents.command_path)
  config = shlex.quote(f'{contents.command_path.rstrip("/")}/{CONFIG}')
  train = f'dualenc train --gin_file={config} --model_dir={folder}'
  steps, done = contents.settings.get('STEPS', ''), contents.step or 0
  if not done:
    yield 'There is no checkpoint yet.', train
  elif steps.isdecimal() and done < int(steps) and not contents.ended:
    yield f'Training is at step {done:,} of {int(steps):,}.', train
  kind = contents.settings.get('OBJECTIVE', '')
  if 'Ranking' in kind or 'Generation' in kind:
    # These models embed nothing.
    return
  if all(contents.settings.get(f'{s}_FILE') == 'None' for s in _MEASURED):
    folder += ' --split=train'
  if not contents.evaluations:
    yield (
        'There is no evaluation yet.',
        f'dualenc evaluate --model_dir={folder}',
    )
  for evaluation in contents.evaluations:
    if outdated := describe_outdated(evaluation.result):
      command = str(evaluation.result.provenance.get('command', ''))
      yield f'The evaluation {evaluation.name} is {outdated}.', command
  if not contents.analyses:
    yield (
        'There are no figures of the embedding space.',
        f'dualenc analyze --model_dir={folder}',
    )
