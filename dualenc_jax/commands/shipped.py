"""The gin files that are shipped."""

import pathlib
import re


def gin_root() -> pathlib.Path:
  """The folder of the shipped gin files, in a wheel or in a clone."""
  package = pathlib.Path(__file__).resolve().parents[1]
  installed = package / 'gin'
  return installed if installed.is_dir() else package.parent / 'gin'


def shipped_files() -> list[str]:
  """Names of the shipped gin files, such as 'losses/samtone.gin'.

  Those in t5x/ are for T5X's own trainer.
  """
  root = gin_root()
  names = [p.relative_to(root) for p in root.rglob('*.gin')]
  return sorted(str(name) for name in names if name.parts[0] != 't5x')


def with_macro(name: str) -> str:
  """" It is of --gin_file=tasks/pairs.gin.", or nothing where no file has it.

  A recipe's own macros are of no other command, and so are not told.
  """
  files = [
      file
      for file in shipped_files()
      if not file.startswith('recipes/')
      and re.search(rf'^{name} = ', (gin_root() / file).read_text(), re.M)
  ]
  return f' It is of --gin_file={" or ".join(files[:3])}.' if files else ''
