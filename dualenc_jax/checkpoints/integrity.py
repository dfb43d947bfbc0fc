"""Checks that the checkpoints of a model_dir are what was saved."""

from collections.abc import Iterator
import dataclasses
import pathlib

from dualenc_jax.checkpoints import model_dirs
from dualenc_jax.utils import finite, untrusted
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files import checkpoint_meta, zarr_files
from dualenc_jax.utils.tensor_files.tensors import DamageError


@dataclasses.dataclass(frozen=True)
class Checked:
  """The findings in the checkpoint of a step.

  Attributes:
    tensors: how many it lists, of parameters, optimizer and memory; one a
      layer.
    problems: a line each, with the file and the tensor; () of a good one.
    has_digests: whether its tensors could be compared with their digests.
  """

  step: int
  tensors: int
  problems: tuple[str, ...]
  has_digests: bool


def check(path: pathlib.Path) -> Iterator[Checked]:
  """Reads all of every checkpoint, oldest first, a tensor at a time.

  Args:
    path: a model_dir, which is not changed; UserError if it has no checkpoint.
  """
  steps = model_dirs.steps(path)
  if not steps:
    raise UserError(
        f'{path} has no checkpoints to check. Give the folder that `dualenc'
        ' train` or `convert` wrote; to explain a config, give --gin_file.'
    )
  for step in steps:
    yield _check(model_dirs.folder_of(path, step), step)


def _check(folder: pathlib.Path, step: int) -> Checked:
  problems, known, count = [], None, 0
  try:
    _, known = checkpoint_meta.read(folder, **checkpoint_meta.TYPES)
  except DamageError as e:
    problems.append(str(e))
  items = {p.name for p in folder.glob('*') if zarr_files.is_tree(p)}
  for item in sorted({'params'} | items | (known or {}).keys()):
    try:
      untrusted.check_name(item, f'{folder / checkpoint_meta.FILE}: an item')
      tensors = checkpoint_meta.read_item(folder / item, known)
    except UserError as e:
      problems.append(str(e))
      continue
    count += len(tensors)
    for tensor in tensors.values():
      try:
        array = tensor.load()
        finite.check_tensor(tensor.where, array, 'Use another checkpoint.')
      except (OSError, ValueError) as e:
        text = str(e).splitlines()[0]
        where = '' if tensor.where in text else f'{tensor.where}: '
        problems.append(f'{where}{text}')
  return Checked(step, count, tuple(problems), known is not None)
