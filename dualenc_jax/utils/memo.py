"""Results that are kept by the values of what they were made from."""

from collections.abc import Callable
import functools
from typing import Any


def keep_by_value(function: Callable[..., Any]) -> Callable[..., Any]:
  """Keeps the last 16 results of a function of equal arguments.

  Arguments without a hash, such as a module with a list, are computed anew.
  """
  kept = functools.lru_cache(maxsize=16)(function)

  @functools.wraps(function)
  def call(*args: Any) -> Any:
    try:
      hash(args)
    except TypeError:
      return function(*args)
    return kept(*args)

  return call
