"""What a report could show but the folder does not have, and what makes it."""

from collections.abc import Iterator
import shlex

from dualenc_jax.report.contents import CONFIG, Contents
from dualenc_jax.report.markup import Html, section, tag


def find(contents: Contents) -> Iterator[tuple[str, str]]:
  """What is missing, and the command that makes it, '' where none is known."""
  folder = shlex.quote(contents.command_path)
  own_config = shlex.quote(f'{contents.command_path.rstrip("/")}/{CONFIG}')
  train = f'dualenc train --gin_file={own_config} --model_dir={folder}'
  steps = contents.settings.get('STEPS', '')
  checkpoint = contents.checkpoint
  done = checkpoint.step if checkpoint else 0
  if not done:
    yield 'There is no checkpoint yet.', train
  elif steps.isdecimal() and done < int(steps) and not checkpoint.ended:
    yield f'Training is at step {done:,} of {int(steps):,}.', train
  if done and not contents.curves:
    yield 'There are no curves: training has left no metrics.jsonl.', train
  if 'Ranking' in contents.settings.get('OBJECTIVE', ''):
    yield (
        'A cross-encoder is measured by the runs that it re-ranks.',
        f'dualenc rerank --teacher={folder} --run=run.trec --tasks=...',
    )
    return
  if 'Generation' in contents.settings.get('OBJECTIVE', ''):
    # It embeds and ranks nothing.
    return
  if not contents.evaluations:
    again = f'dualenc evaluate --model_dir={folder}'
    yield 'There is no evaluation yet.', again
  for evaluation in contents.evaluations:
    facts = evaluation.result.provenance
    again, step = str(facts.get('command', '')), facts.get('checkpoint_step')
    kind, used = 'newest', done
    if checkpoint and checkpoint.best:
      kind, used = 'best', checkpoint.best['step']
    if done and step not in (None, used):
      yield (
          f'The evaluation {evaluation.name} is of step {step:,}, the {kind}'
          f' checkpoint of step {used:,}.',
          again,
      )
    elif evaluation.examples is None:
      yield f'The evaluation {evaluation.name} has no examples.', again
  if not contents.analyses:
    yield (
        'There are no figures of the embedding space.',
        f'dualenc analyze --model_dir={folder}',
    )


def render(contents: Contents) -> Html:
  """The section; nothing of it if all is there."""
  items = [
      tag('li', what, *([tag('pre', command)] if command else []))
      for what, command in find(contents)
  ]
  content = tag('ul', *items) if items else ''
  return section('missing', 'Not there yet', content)
