"""Models and data on the Hugging Face hub: hf://org/name."""

from collections.abc import Iterator
import contextlib
import functools
import os
import re
from typing import Any

from dualenc_jax.utils import untrusted
from dualenc_jax.utils.errors import (
  did_you_mean,
  SourceUnavailable,
  UserError,
)

_PREFIX = 'hf://'
_PART = r'\w[\w.-]*'
_PLACE = re.compile(
    rf'(?:datasets/)?(?P<repo>{_PART}/{_PART})(?:@(?P<revision>[\w./-]+?))?'
    r'(?:/(?P<inner>[^@]+))?'
)
# Copies of the same weights for other programs.
_OTHERS = (
    'pytorch_model*.bin', '*.h5', '*.ot', '*.onnx', 'flax_model*', 'openvino/*'
)
_LOGIN = '`hf auth login`, or set HF_TOKEN'


def is_on_hub(path: object) -> bool:
  """Whether a path is hf://org/name."""
  return isinstance(path, str) and path.startswith(_PREFIX)


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
  hub = _library(path)
  result = None
  if inner is not None or kind == 'model':
    with _explained(path, kind):
      folder = hub.snapshot_download(
          repo, repo_type=kind, revision=revision,
          allow_patterns=[inner, f'{inner}/*'] if inner else None,
          ignore_patterns=_OTHERS if kind == 'model' else None,
      )
    result = os.path.join(folder, inner) if inner else folder
  if result is not None and os.path.exists(result):
    return result
  with _explained(path, kind):
    names = hub.HfApi().list_repo_files(
        repo, revision=revision, repo_type=kind
    )
  shown = untrusted.quote(', '.join(names[:20]))
  if inner is None:
    raise UserError(
        f'{path} is a data set; expected a file in it, {path}/FILE. It has'
        f' {shown}.'
    )
  raise UserError(
      f'{path}: {repo} has no {inner}.{did_you_mean(inner, names)} It has'
      f' {shown}.'
  )


def _library(what: str) -> Any:
  try:
    import huggingface_hub
    import huggingface_hub.constants
    import huggingface_hub.errors
  except ImportError as error:
    raise SourceUnavailable(
        f'{what} is on a hub, but huggingface_hub, which downloads it, cannot'
        f' be imported ({error}). Install dualenc-jax[hub].'
    ) from error
  return huggingface_hub


@contextlib.contextmanager
def _explained(what: str, kind: str) -> Iterator[None]:
  """Raises SourceUnavailable, with a remedy, for an error of the hub."""
  errors = _library(what).errors
  try:
    yield
  except (errors.HTTPError, OSError) as error:
    why = _why(error, errors, kind)
    raise SourceUnavailable(f'{what}{why}') from error


def _why(error: Exception, errors: Any, kind: str) -> str:
  status = getattr(getattr(error, 'response', None), 'status_code', None)
  match error:
    case errors.GatedRepoError():
      return f' asks for consent: give it on its page, log in with {_LOGIN}.'
    case errors.RepositoryNotFoundError():
      return (
          f': the hub has no such {kind}, or it is private. Check the name, or'
          f' log in with {_LOGIN}.'
      )
    case errors.RevisionNotFoundError():
      return f': the {kind} has no such revision. Give a branch, tag or commit.'
    case errors.HfHubHTTPError() if status in (401, 403):
      return f': the token has no permission. Log in with {_LOGIN}.'
    case errors.HfHubHTTPError() if status:
      return f': the hub answers {status}. Try again later.'
  return (
      f': {untrusted.quote(str(error))}. Connect to the internet, or give a'
      ' local path.'
  )
