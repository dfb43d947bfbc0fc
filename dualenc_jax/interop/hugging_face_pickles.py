"""Weights that are not safetensors: refused, with the way to make them so."""

from collections.abc import Sequence
import pathlib
import zipfile

from dualenc_jax.errors import UserError
from dualenc_jax.interop import hugging_face_config as config_lib
from dualenc_jax.tensor_files import safetensors_file

_PATTERNS = ('*.bin', '*.pt', '*.pth', '*.ckpt')
_OTHER_FRAMEWORKS = {'*.h5': 'from_tf', '*.msgpack': 'from_flax'}


def is_one(path: pathlib.Path) -> bool:
  """Whether a file is one of torch.save, by its first bytes."""
  if zipfile.is_zipfile(path):
    with zipfile.ZipFile(path) as archive:
      return any(name.endswith('data.pkl') for name in archive.namelist())
  with path.open('rb') as file:
    return file.read(2) == b'\x80\x02'


def refuse(path: pathlib.Path) -> None:
  """Raises UserError for a pickle, or a folder without safetensors.

  Args:
    path: a file or a folder; one with no weights at all is let pass.

  Raises:
    UserError: names the file, and the lines of Python that make safetensors.
  """
  folder = path if path.is_dir() else path.parent
  names = safetensors_file.FILE, safetensors_file.INDEX
  if path.is_file():
    found = [path] if is_one(path) else []
  elif any((folder / name).is_file() for name in names):
    return
  else:
    found = _matching(folder, _PATTERNS)
  if found:
    raise UserError(
        f'{found[0]} is a pickle, which can run any program when it is opened;'
        ' only safetensors are read. If you trust it, convert it where'
        f' transformers and torch are installed, {_hint(folder)}'
    )
  if path.is_file():
    return
  for pattern, option in _OTHER_FRAMEWORKS.items():
    for other in _matching(folder, [pattern]):
      raise UserError(
          f'{other}: only safetensors are read. Convert it with transformers 4,'
          f' {_hint(folder, f", {option}=True")}'
      )


def _matching(
    folder: pathlib.Path, patterns: Sequence[str]
) -> list[pathlib.Path]:
  return [file for p in patterns for file in sorted(folder.glob(p))]


def _hint(folder: pathlib.Path, option: str = '') -> str:
  kind = 'MT5' if config_lib.model_type(folder) == 'mt5' else 'T5'
  old, new = repr(str(folder)), repr(f'{folder}-safetensors')
  return (
      'and give the new folder:\n'
      f'  from transformers import AutoTokenizer, {kind}EncoderModel\n'
      f'  model = {kind}EncoderModel.from_pretrained({old}{option})\n'
      f'  model.save_pretrained({new})\n'
      f'  AutoTokenizer.from_pretrained({old}).save_pretrained({new})'
  )
