"""Measurements of compiled programs, kept on disk between runs.

JAX keeps programs, too, but cannot read those of absent devices.
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

# Of the files' content.
_VERSION = 1
# Flags of the compiler are in these.
_FLAGS = 'LIBTPU_INIT_ARGS', 'XLA_FLAGS'
_LOG = logging.getLogger(__name__)


def folder() -> pathlib.Path:
  return files.default_cache_dir() / 'forecasts'


def file(lowered: jax.stages.Lowered, on: Slice, what: str) -> pathlib.Path:
  """The file of a program over all devices of a slice in their order."""
  facts = [
      _VERSION, dualenc_jax.__version__, jax.__version__, on.compiler, on.name,
      *(os.environ.get(flags, '') for flags in _FLAGS),
      # Without the lines of code of its operations.
      lowered.as_text(),
  ]
  digest = hashlib.sha256('\n'.join(map(str, facts)).encode()).hexdigest()
  return folder() / f'{digest}-{what}.json'


def read(path: pathlib.Path, fields: Mapping[str, Any]) -> dict | None:
  """The value that `write` wrote, or None where the file is damaged."""
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
