"""`dualenc COMMAND --help` without the second that importing JAX takes.

A command's parser needs none of what computes, but its module imports that. So
while --help is printed the heavy packages have stand-ins, which can be
subclassed, called and asked for anything, and compute nothing. What they cannot
stand in for is imported as ever.
"""

import abc
from collections.abc import Callable, Sequence
from importlib import machinery, util
import sys
import types
from typing import Any

HEAVY = frozenset(['jax', 'jaxlib', 'flax', 'optax', 'orbax', 'tensorstore'])


def show(command: Callable[[], types.ModuleType]) -> bool:
  """Prints the help of a command; False where it needs the real packages.

  Args:
    command: imports its module.
  """
  if HEAVY & sys.modules.keys():
    return False
  before, finder = set(sys.modules), _Finder()
  sys.meta_path.insert(0, finder)
  try:
    command().main(['--help'])
  except SystemExit:
    return True
  except Exception:
    pass  # The real packages tell, if it is not for the stand-ins.
  finally:
    sys.meta_path.remove(finder)
    # What has been built on them is of no use to anyone else.
    for name in sys.modules.keys() - before:
      if name.partition('.')[0] in HEAVY | {'dualenc_jax'}:
        del sys.modules[name]
        package, _, own = name.rpartition('.')
        vars(sys.modules.get(package, finder)).pop(own, None)
  return False


class _Meta(abc.ABCMeta):
  """Of classes that are anything."""

  def __call__(cls, *args: Any, **kwargs: Any) -> Any:
    return StandIn

  def __getattr__(cls, name: str) -> Any:
    if name.startswith('__'):
      raise AttributeError(name)
    return StandIn

  def __getitem__(cls, key: Any) -> Any:
    return StandIn


class StandIn(metaclass=_Meta):
  """Whatever a heavy package has: a class, a function, an object."""


class _Module(types.ModuleType):
  """A heavy package, or a module in it."""

  def __getattr__(self, name: str) -> Any:
    if name.startswith('__'):
      raise AttributeError(name)
    return StandIn


class _Finder:
  """Finds stand-ins in the place of heavy packages."""

  def find_spec(
      self, name: str, path: Sequence[str] | None, target: Any = None
  ) -> machinery.ModuleSpec | None:
    del path, target
    if name.partition('.')[0] not in HEAVY:
      return None
    return util.spec_from_loader(name, self, is_package=True)

  def create_module(self, spec: machinery.ModuleSpec) -> types.ModuleType:
    return _Module(spec.name)

  def exec_module(self, module: types.ModuleType) -> None:
    del module
