"""What a report could show but the folder does not have, and what makes it."""

from collections.abc import Iterator
import shlex

from dualenc_jax.report import evaluate_command
from dualenc_jax.report.markup import Html, section, tag
from dualenc_jax.report.material import CONFIG, Material


def find(material: Material) -> Iterator[tuple[str, str]]:
  """What is missing, and the command for it."""
  folder = shlex.quote(material.command_path)
  own_config = shlex.quote(f'{material.command_path.rstrip("/")}/{CONFIG}')
  train = f'dualenc train --gin_file={own_config} --model_dir={folder}'
  steps = material.bindings.get('STEPS', '')
  done = material.checkpoint.step if material.checkpoint else 0
  if not done:
    yield 'There is no checkpoint yet.', train
  elif steps.isdecimal() and done < int(steps):
    yield f'Training is at step {done:,} of {int(steps):,}.', train
  if done and not material.curves:
    yield 'There are no curves: training has written no events.', train
  if not material.evaluations:
    yield (
        'There is no evaluation yet.',
        f'dualenc evaluate --model_dir={folder}',
    )
  for evaluation in material.evaluations:
    again = evaluate_command.of(evaluation.result, material)
    step = evaluation.result.provenance.get('checkpoint_step')
    if done and step not in (None, done):
      yield (
          f'The evaluation {evaluation.name} is of step {step:,}, the newest'
          f' checkpoint of step {done:,}.',
          again,
      )
    elif evaluation.examples is None:
      yield f'The evaluation {evaluation.name} has no examples.', again
  if not material.analyses:
    yield (
        'There are no figures of the embedding space.',
        f'dualenc analyze --model_dir={folder}',
    )


def render(material: Material) -> Html:
  """The section; nothing of it if all is there."""
  items = [
      tag('li', what, tag('pre', _unbroken(command)))
      for what, command in find(material)
  ]
  if not items:
    return Html('')
  return section('missing', 'Not there yet', tag('ul', *items))


def _unbroken(command: str) -> Html:
  """A command whose lines end between words, not at their hyphens."""
  words = [tag('span', word) for word in command.split(' ')]
  return tag('code', words[0], *(c for w in words[1:] for c in (' ', w)))
