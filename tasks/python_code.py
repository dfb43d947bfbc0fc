"""python_code: docstring -> code over the Python installed on this machine."""

from dualenc_jax.data.reader import registrar
from dualenc_jax.readers.python_code import PythonCode as reader

__all__ = ['reader', 'register']

register = registrar(reader)
