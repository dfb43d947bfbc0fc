"""`dualenc COMMAND --help` without the second that importing JAX takes.

A command's module imports what computes, which its parser does not need. A
process that only prints help has stand-ins for the heavy packages, which can be
subclassed and called, have any attribute, and compute nothing.
"""

import abc
from importlib import util
import sys
from typing import Any

HEAVY = frozenset(['jax', 'jaxlib', 'flax', 'optax', 'orbax', 'tensorstore'])


def install() -> None:
  """Replaces heavy packages by stand-ins for the rest of this process."""
  sys.meta_path.insert(0, _Finder())


class _Anything(abc.ABCMeta):

  def __getattr__(cls, name: str) -> Any:
    if name.startswith('__'):
      raise AttributeError(name)
    return _StandIn

  def __call__(cls, *args: Any, **kwargs: Any) -> Any:
    return _StandIn

  def __getitem__(cls, key: Any) -> Any:
    return _StandIn


class _StandIn(metaclass=_Anything):
  """Stands for a module, a class, a function or an object."""


class _Finder:

  def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
    heavy = name.partition('.')[0] in HEAVY
    loader: Any = self
    spec = util.spec_from_loader(name, loader, is_package=True)
    return spec if heavy else None

  def create_module(self, spec: Any) -> Any:
    return _Anything(spec.name, (), {})

  def exec_module(self, module: Any) -> None:
    pass
