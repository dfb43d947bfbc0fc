"""Paths that are no files: hf://org/name on the hub, and st:FOLDER."""

import functools
import os
import pathlib
import re
from typing import Any

from dualenc_jax.utils import untrusted
from dualenc_jax.utils.errors import SourceUnavailable, UserError

_PREFIX = 'hf://'
# A model of sentence-transformers, which that library is to run.
_FOREIGN = 'st:'
_PART = r'\w[\w.-]*'
_PLACE = re.compile(
    rf'(?:datasets/)?(?P<repo>{_PART}/{_PART})(?:@(?P<revision>[\w./-]+?))?'
    r'(?:/(?P<inner>[^@]+))?'
)
# Copies of the same weights for other programs.
_OTHERS = [
    'pytorch_model*.bin', '*.h5', '*.ot', '*.onnx', 'flax_model*', 'openvino/*'
]


def is_on_hub(path: object) -> bool:
  """Whether a path is hf://org/name."""
  return isinstance(path, str) and path.startswith(_PREFIX)


def is_foreign(path: object) -> bool:
  """Whether a path is st:FOLDER."""
  return str(path).startswith(_FOREIGN)


def folder_of(path: object) -> pathlib.Path:
  """FOLDER of st:FOLDER; other paths as they are."""
  return pathlib.Path(str(path).removeprefix(_FOREIGN)).expanduser()


@functools.cache
def model(path: Any) -> Any:
  """The local folder of hf://org/name[@revision][/folder]; other paths as is.

  It is in the hub's own cache, and read there when the hub is not reached.

  Raises:
    SourceUnavailable: it cannot be downloaded and is not in the cache.
    UserError: the path is none of a model.
  """
  return _fetch(path, 'model') if is_on_hub(path) else path


@functools.cache
def data(path: Any) -> Any:
  """The local file, or folder, of hf://org/name/file; other paths as they are.

  Raises:
    SourceUnavailable: it cannot be downloaded and is not in the cache.
    UserError: the path names no file of the data set.
  """
  return _fetch(path, 'dataset') if is_on_hub(path) else path


def _fetch(path: str, kind: str) -> str:
  """Downloads a 'model' or a file of a 'dataset'; returns its local path."""
  place = _PLACE.fullmatch(path.removeprefix(_PREFIX))
  if not place:
    file = '/train.jsonl' if kind == 'dataset' else ''
    raise UserError(
        f'{path} is not a path on the hub; expected hf://org/name{file}.'
    )
  repo, revision, inner = place.group('repo', 'revision', 'inner')
  if inner is not None:
    untrusted.check_name(inner, path, 'Give another path.')
  if inner is None and kind == 'dataset':
    raise UserError(
        f'{path} is a data set; expected a file in it, {path}/FILE.'
    )
  try:
    import huggingface_hub as hub
    import huggingface_hub.errors
  except ImportError as error:
    raise SourceUnavailable(
        f'{path} is on a hub, but huggingface_hub, which downloads it, cannot'
        f' be imported ({error}). Install dualenc-jax[hub].'
    ) from error
  try:
    folder = hub.snapshot_download(
        repo, repo_type=kind, revision=revision,
        allow_patterns=[inner, f'{inner}/*'] if inner else None,
        ignore_patterns=_OTHERS if kind == 'model' else None,
    )
  except (hub.errors.HTTPError, OSError) as error:
    cause = f'{type(error).__name__}: {untrusted.quote(str(error))}'
    raise SourceUnavailable(
        f'{path} cannot be fetched ({cause}). Check the name;'
        ' log in with `hf auth login`, or set HF_TOKEN, where it is private;'
        ' or give a local path.'
    ) from error
  result = os.path.join(folder, inner or '')
  if not os.path.exists(result):
    raise UserError(f'{path}: {repo} has no {inner}. Give a file that it has.')
  return result
