"""What compilers have said, kept between runs.

JAX keeps programs, too, but cannot read those of devices that are not there.
"""

from collections.abc import Mapping
import hashlib
import logging
import os
import pathlib
from typing import Any

import jax

import dualenc_jax
from dualenc_jax.errors import UserError
from dualenc_jax.forecast.slices import Slice
from dualenc_jax.io import files, json_file

# Of what is kept, and of how it is read out of a program.
_VERSION = 1
# Flags of the compiler are in these.
_FLAGS = 'LIBTPU_INIT_ARGS', 'XLA_FLAGS'
_LOG = logging.getLogger(__name__)


def folder() -> pathlib.Path:
  return files.default_cache_dir() / 'forecasts'


def file(lowered: jax.stages.Lowered, on: Slice, what: str) -> pathlib.Path:
  """Where what the compiler says of a program is kept.

  Args:
    lowered: the program, over all devices of the slice in their order.
    on: the slice.
    what: of it is kept.
  """
  facts = [
      _VERSION, dualenc_jax.__version__, jax.__version__, on.compiler, on.name,
      *(os.environ.get(flags, '') for flags in _FLAGS),
      # Without where in the code its operations come from.
      lowered.as_text(),
  ]
  digest = hashlib.sha256('\n'.join(map(str, facts)).encode()).hexdigest()
  return folder() / f'{digest}-{what}.json'


def read(path: pathlib.Path, fields: Mapping[str, Any]) -> dict | None:
  """What `write` wrote there; None for no such file or a damaged one.

  Args:
    path: of the file.
    fields: as `json_file.check` takes them.
  """
  try:
    return json_file.read(path, **fields)
  except UserError:
    return None


def write(path: pathlib.Path, value: Mapping[str, Any]) -> None:
  """Keeps it for the next run, where files can be written."""
  try:
    files.make_folder(path.parent)
    files.write_json(path, value)
  except UserError as e:
    _LOG.warning('%s', e)
