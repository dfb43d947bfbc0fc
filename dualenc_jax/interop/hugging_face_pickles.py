"""Weights that are not safetensors: refused, with the way to make them so."""

import pathlib
import zipfile

from dualenc_jax.errors import UserError
from dualenc_jax.interop import hugging_face_config as config_lib
from dualenc_jax.tensor_files import safetensors_file

# Endings, what such files are, and how transformers opens them.
_OTHERS = {
    '.bin': ('a pickle', ''),
    '.pt': ('a pickle', ''),
    '.pth': ('a pickle', ''),
    '.ckpt': ('a pickle', ''),
    '.h5': ('of TensorFlow; have transformers 4', ', from_tf=True'),
    '.msgpack': ('of Flax; have transformers 4', ', from_flax=True'),
}


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
  """
  folder = path if path.is_dir() else path.parent
  names = safetensors_file.FILE, safetensors_file.INDEX
  if path.is_file():
    found = {'.bin': path} if is_one(path) else {}
  elif any((folder / name).is_file() for name in names):
    return
  else:
    found = {file.suffix: file for file in sorted(folder.iterdir())}
  for ending, (what, option) in _OTHERS.items():
    if ending in found:
      kind = 'MT5' if config_lib.model_type(folder) == 'mt5' else 'T5'
      old, new = repr(str(folder)), repr(f'{folder}-safetensors')
      raise UserError(
          f'{found[ending]} is {what}. Only safetensors are read: a pickle can'
          ' run any program when it is opened. If you trust it, convert it'
          ' where transformers and torch are installed, and give the new'
          ' folder:\n'
          f'  from transformers import AutoTokenizer, {kind}EncoderModel\n'
          f'  model = {kind}EncoderModel.from_pretrained({old}{option})\n'
          f'  model.save_pretrained({new})\n'
          f'  AutoTokenizer.from_pretrained({old}).save_pretrained({new})'
      )
