"""`dualenc COMMAND --help` without the second that importing JAX takes.

A command's parser needs none of what computes, but its module imports that. So
while --help is printed the heavy packages have stand-ins, which can be
subclassed, called and asked for anything, and compute nothing.
"""

import abc
import importlib
from importlib import util
import sys
import types
from typing import Any

HEAVY = frozenset(['jax', 'jaxlib', 'flax', 'optax', 'orbax', 'tensorstore'])


def show(name: str) -> bool:
  """Prints the help of a command's module; False if that needs the packages."""
  if HEAVY & sys.modules.keys():
    return False
  before, finder = set(sys.modules), _Finder()
  sys.meta_path.insert(0, finder)
  try:
    importlib.import_module(name).main(['--help'])
  except SystemExit:
    return True
  except Exception:
    pass  # The real packages report it, if it is not for the stand-ins.
  finally:
    sys.meta_path.remove(finder)
    # What has been built on them is of no use to anyone else.
    for name in sys.modules.keys() - before:
      if name.partition('.')[0] in HEAVY | {'dualenc_jax'}:
        del sys.modules[name]
        package, _, own = name.rpartition('.')
        vars(sys.modules.get(package, finder)).pop(own, None)
  return False


def _anything(owner: Any, name: str) -> Any:
  if name.startswith('__'):
    raise AttributeError(name)
  return _StandIn


class _Meta(abc.ABCMeta):
  __getattr__ = _anything

  def __call__(cls, *args: Any, **kwargs: Any) -> Any:
    return _StandIn

  def __getitem__(cls, key: Any) -> Any:
    return _StandIn


class _StandIn(metaclass=_Meta):
  """Whatever a heavy package has: a class, a function, an object."""


class _Module(types.ModuleType):
  __getattr__ = _anything


class _Finder:

  def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
    heavy = name.partition('.')[0] in HEAVY
    loader: Any = self
    spec = util.spec_from_loader(name, loader, is_package=True)
    return spec if heavy else None

  def create_module(self, spec: Any) -> types.ModuleType:
    return _Module(spec.name)

  def exec_module(self, module: types.ModuleType) -> None:
    pass
