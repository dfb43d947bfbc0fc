"""The top of the page: what the model is, and how good, at a glance."""

from collections.abc import Mapping
import re

from dualenc_jax.report import headlines
from dualenc_jax.report.markup import Html, tag
from dualenc_jax.report.material import Material
from dualenc_jax.results.folder import Model

# Dong et al. (2022), by which parts the passage tower has of its own.
_ARCHITECTURES = {
    (): 'SDE',
    ('token_embedder', 'encoder', 'projection'): 'ADE',
    ('encoder', 'projection'): 'ADE-STE',
    ('token_embedder', 'encoder'): 'ADE-SPL',
}


def render(material: Material, model: Model) -> Html:
  """Name, what it is, and its numbers in large."""
  bindings = material.bindings
  what = [task(material), loss(bindings), architecture(bindings)]
  numbers = [
      tag(
          'p',
          tag('span', number.name),
          tag('b', number.value, tag('i', number.unit)),
          tag('small', number.where),
      )
      for number in headlines.of(material, model)
  ]
  return tag(
      'header',
      tag('p', 'dualenc report', class_='kind'),
      tag('h1', material.name),
      tag('p', ' · '.join(w for w in what if w), class_='what'),
      tag('p', progress(material), class_='when'),
      *([tag('div', *numbers, class_='numbers')] if numbers else []),
      tag(
          'dl',
          *(
              tag('div', tag('dt', name), tag('dd', value))
              for name, value in facts(bindings).items()
          ),
          class_='facts',
      ),
  )


def task(material: Material) -> str:
  """The task as the checkpoint has it, else by its name in the config."""
  if material.checkpoint and 'data' in material.checkpoint.meta:
    name = material.checkpoint.meta['data'].get('task', '')
    return name if isinstance(name, str) else ' + '.join(map(str, name))
  return material.bindings.get('TASK', '').lstrip('@').partition('/')[0]


def loss(bindings: Mapping[str, str]) -> str:
  """The class of the loss, and what sets it apart from its default."""
  name = _class_name(bindings.get('LOSS', ''))
  both = bindings.get(f'losses.{name}.both_towers') == 'True'
  return f'{name} on both towers' if both else name


def architecture(bindings: Mapping[str, str]) -> str:
  """Which parts the towers share, in the words of Dong et al. (2022)."""
  name = _class_name(bindings.get('MODEL', ''))
  if name != 'DualEncoder':
    return name
  own = tuple(
      part
      for part in ('token_embedder', 'encoder', 'projection')
      if bindings.get(f'models.DualEncoder.passage_{part}', 'None') != 'None'
  )
  if 'token_embedder' in bindings.get('FREEZE', ''):
    return 'ADE-FTE'
  return _ARCHITECTURES.get(own, name)


def progress(material: Material) -> str:
  """How far the training is, and since when."""
  steps = material.bindings.get('STEPS', '?')
  if steps.isdecimal():
    steps = f'{int(steps):,}'
  if material.checkpoint is None:
    return f'No checkpoint yet, of {steps} steps'
  words = f'Checkpoint of step {material.checkpoint.step:,} of {steps}'
  saved = material.checkpoint.saved
  return words + (f', {saved:%-d %B %Y, %H:%M} UTC' if saved else '')


def facts(bindings: Mapping[str, str]) -> dict[str, str]:
  """Settings that a reader asks for first, those that the config has."""
  value = bindings.get
  name = _class_name(value('LOSS', ''))
  layers = value('models.T5Encoder.num_layers')
  width = value('models.TokenEmbedder.features')
  candidates = {
      'encoder': layers and width and f'{layers} layers, {width} wide',
      'embedding': value('models.Projection.features'),
      'temperature': value(f'losses.{name}.temperature'),
      'batch': value('BATCH_SIZE'),
      'hard negatives': value('NUM_NEGATIVES'),
      'learning rate': value('LEARNING_RATE'),
      'optimizer': _class_name(value('OPTIMIZER', '')),
      'query tokens': value('QUERY_LENGTH'),
      'passage tokens': value('PASSAGE_LENGTH'),
      'dtype': value('DTYPE', '').strip("'"),
      'seed': value('SEED'),
      'started from': value('INITIAL_CHECKPOINT_PATH', '').strip("'"),
  }
  return {k: v for k, v in candidates.items() if v and v != 'None'}


def _class_name(reference: str) -> str:
  """'SamToNe' of '@losses.SamToNe()'."""
  found = re.fullmatch(r'@(?:[\w/]+[./])*(\w+)(?:\(\))?', reference)
  return found[1] if found else reference
