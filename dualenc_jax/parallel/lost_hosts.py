"""A function that JAX calls, in place of aborting, once it gives a host up.

By default JAX's client ends its process by SIGABRT, with a stack trace of C++.
It can call a function instead, which `jax.distributed.initialize` does not
pass on. In jaxlib 0.10.2 the call itself fails: the error, an argument, has no
form in Python, and std::bad_cast, which nothing catches, ends the process. The
C++ runtime calls a function before that, too. Where JAX takes no function, or
the runtime is not libstdc++, JAX aborts as by default.
"""

from collections.abc import Callable, Iterator
import contextlib
import ctypes
import functools
from typing import Any

_CALLBACK = 'missed_heartbeat_callback'
_VOID = ctypes.CFUNCTYPE(None)
# The C++ runtime may call these for as long as the process lives.
_kept: list[Any] = []


@contextlib.contextmanager
def told_to(lost: Callable[..., None]) -> Iterator[None]:
  """A context in which JAX makes clients that call a function.

  Args:
    lost: ends the process. JAX calls it, in another thread and with arguments
      of its own, once a host or the service is given up, or in this thread if
      the hosts have not all come.
  """
  from jax._src import distributed

  library: Any = distributed._jax
  name = 'get_distributed_runtime_client'
  make: Any = getattr(library, name, None)
  if _CALLBACK not in (make.__doc__ or '') or not _call_at_bad_cast(lost):
    yield
    return
  setattr(library, name, functools.partial(make, **{_CALLBACK: lost}))
  try:
    yield
  except RuntimeError as e:
    if 'bad_cast' in str(e):
      lost()
    raise
  finally:
    setattr(library, name, make)


def _call_at_bad_cast(lost: Callable[..., None]) -> bool:
  """Has `lost` called where std::bad_cast would end this process.

  Returns:
    Whether the C++ runtime is one that can be told so, libstdc++.
  """
  try:
    runtime = ctypes.CDLL('libstdc++.so.6')
    set_terminate = runtime['_ZSt13set_terminatePFvvE']
    current_type = runtime['__cxa_current_exception_type']
  except (OSError, AttributeError):
    return False
  set_terminate.restype = current_type.restype = ctypes.c_void_p

  @_VOID
  def handle() -> None:
    # A std::type_info is the address of its functions and that of its name.
    of_type = current_type()
    words = ctypes.cast(of_type, ctypes.POINTER(ctypes.c_char_p))
    if of_type and words[1] == b'St8bad_cast':
      lost()
    before()

  before = _VOID(set_terminate(handle))
  _kept.append(handle)
  return True
