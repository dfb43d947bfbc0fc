"""The config in the folder of a run: written, read, compared."""

from collections.abc import Sequence
import logging
import pathlib
import re

import jax

from dualenc_jax.checkpoints import checkpoint_reader
from dualenc_jax.cli import config
from dualenc_jax.utils import files, json_file
from dualenc_jax.utils.errors import UserError

CONFIG = 'config.gin'
# These change how a run is computed and kept, not what it learns.
_FREE_TO_CHANGE = re.compile('|'.join([
    r'LAYOUT|data\.(Packed|Padded)\..*',
    r'LOSS_IMPLEMENTATION|MICRO_BATCH_SIZE',
    r'MODEL_PARALLEL|(.*[./])?Partitioner\.(model_parallel|rules)',
    r'(.*[./])?T5Encoder\.remat',
    r'(.*[./])?Experiment\.(eval_batch_size|checkpoint_every'
    r'|keep_checkpoints)|CHECKPOINT_EVERY',
    # The data itself checks that prefixes and tokens are the same.
    r'PROMPTS|data\.(Tokenizer|Mixture)\.(prompts|default_prompt)',
    r'CACHE_DIR|TRACKER',
]))
# BEIR macros and their neutral values.
_BEIR_MACROS = {
    'BEIR_SET': None, 'BEIR_FOLDER': None, 'BEIR_PREFIX': '',
    'BEIR_HARD_NEGATIVES': None, 'BEIR_SCORES': False,
}
# How many differences of a config are shown.
_MOST_CHANGES = 10
_LOG = logging.getLogger(__name__)


def check(model_dir: str, text: str, allow_change: bool) -> None:
  """Makes the folder of a run, and refuses one of another config.

  Names that say how the run is computed and kept may differ from the full gin
  config `text`.
  """
  if '://' in model_dir:
    raise UserError(
        f'MODEL_DIR {model_dir} is not a folder. Mount the bucket (such as with'
        ' gcsfuse) on every host, and give that path.'
    )
  folder = pathlib.Path(model_dir)
  files.make_folder(folder, 'another MODEL_DIR')
  path = folder / CONFIG
  if not path.exists() or not checkpoint_reader.steps(folder):
    return
  differences = config.differences(read(path), text)
  changes = [
      change
      for change in differences
      if not _FREE_TO_CHANGE.fullmatch(change.partition(':')[0])
  ]
  if changes and not allow_change:
    shown, more = changes[:_MOST_CHANGES], len(changes) - _MOST_CHANGES
    shown += [f'and {more} more'] if more > 0 else []
    raise UserError(
        f"{path} has another config. {'; '.join(shown)}. Use another MODEL_DIR,"
        ' or give --allow_config_change to resume with the new values.'
    )
  if differences:
    _LOG.warning('Going on with a changed config: %s', '; '.join(differences))


def write(model_dir: str, text: str) -> None:
  """Puts the config into the folder of a run.

  An earlier config that differs is kept as `config.<n>.gin`. Only the first
  host writes.
  """
  if jax.process_index():
    return
  folder = pathlib.Path(model_dir)
  path = folder / CONFIG
  with files.writing(path, 'another MODEL_DIR'):
    if path.exists() and config.differences(read(path), text):
      number = 1
      while (folder / f'config.{number}.gin').exists():
        number += 1
      path.rename(folder / f'config.{number}.gin')
  files.write(path, text, 'another MODEL_DIR')


def read(path: pathlib.Path) -> str:
  """The config of a run."""
  again = 'Restore it from a copy, or remove it and give the same flags again.'
  return config.update_names(json_file.read_text(path, again))


def unset_beir_set(saved: str, bindings: Sequence[str]) -> list[str]:
  """Bindings that unset the BEIR set of a config where flags name another."""
  given = {text.partition(' = ')[0] for text in bindings}
  if not given & {'BEIR_SET', 'BEIR_FOLDER'}:
    return []
  return [
      f'{name} = {none!r}'
      for name, none in _BEIR_MACROS.items()
      if name not in given and re.search(rf'^{name} = ', saved, re.MULTILINE)
  ]


def own_beir_folder(saved: str, bindings: Sequence[str]) -> str | None:
  """The BEIR folder of a config, unless flags name another or a set."""
  given = {text.partition(' = ')[0] for text in bindings}
  found = re.search(r"^BEIR_FOLDER = \\?\s*'(.*)'$", saved, re.MULTILINE)
  return found[1] if found and not given & {'BEIR_SET', 'BEIR_FOLDER'} else None
