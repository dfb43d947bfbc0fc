"""python_code: docstring -> code over the Python installed on this machine."""

from dualenc_jax.data.python_code import PythonCode as reader
from dualenc_jax.data.reader import registrar

__all__ = ['reader', 'register']

register = registrar(reader)
