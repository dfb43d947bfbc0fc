"""python_code: docstring -> code over the Python installed on this machine."""

from dualenc_jax.data.python_code import PythonCode as reader

__all__ = ['reader', 'register']


def register(name: str, **options):
  """Adds the task to seqio's registry; options are those of `reader`."""
  from dualenc_jax.data import seqio_source  # Imports TensorFlow.

  return seqio_source.add_task(name, reader(**options))
