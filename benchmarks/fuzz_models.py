"""Models in every form, small and good, and what opens them."""

import json
import pathlib
import sys

from fuzz_files import Reader

from dualenc_jax import Retriever
from dualenc_jax.inference import artifact
from dualenc_jax.inference.artifact.manifest import of_file
from dualenc_jax.interop.conversion import Source

# Those of the tests of hostile files.
_TESTS = pathlib.Path(__file__).parents[1] / 'tests'
sys.path += [str(_TESTS), str(_TESTS / 'interop')]

import small_folders  # noqa: E402
import tiny_towers  # noqa: E402


def _form(name: str):
  def reader(folder: pathlib.Path) -> Reader:
    small_folders.write(folder)
    model, vocabulary = folder / name, str(folder / 'spiece.model')

    def read():
      weights, _ = Source(str(model), vocabulary=vocabulary).read()
      for tensor in weights.tensors.values():
        tensor.read()

    return Reader(_files(model), read)

  return reader


def _artifact(folder: pathlib.Path) -> Reader:
  """A saved retriever; what is changed has the digest that it should have."""
  out = folder / 'saved'
  artifact.write(tiny_towers.loaded(), out, ('cpu',))
  header = out / 'artifact.json'
  files = [path for path in _files(out) if path != header]
  known = {path: path.read_bytes() for path in files}
  good = header.read_bytes()

  def read():
    facts = None
    for path, content in known.items():
      if path.read_bytes() != content:
        facts = facts or json.loads(good)
        facts['files'][str(path.relative_to(out))] = of_file(path)
    if facts:
      header.write_text(json.dumps(facts))
    try:
      Retriever.from_dir(out)
    finally:
      if facts:
        header.write_bytes(good)

  return Reader([header, *files], read)


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
  return [path for path in sorted(folder.rglob('*')) if path.is_file()]


READERS = {
    f'model, {name}': _form(name) for name in small_folders.FORMS
} | {'saved retriever': _artifact}
