"""Suggestions of what a wrong name may mean."""

from collections.abc import Iterable
import difflib


def did_you_mean(name: str, known: Iterable[str]) -> str:
  """" Did you mean 'x' or 'y'?", or nothing when no known name is near."""
  by_lower = {k.lower(): k for k in sorted(known)}
  close = difflib.get_close_matches(name.lower(), by_lower, n=3)
  if not close:
    return ''
  return f' Did you mean {" or ".join(repr(by_lower[c]) for c in close)}?'


def did_you_mean_or_known(name: str, known: Iterable[str]) -> str:
  """`did_you_mean`, or a list of all known names when none is near."""
  known = sorted(set(known))
  listing = f' Known: {", ".join(known)}.' if 0 < len(known) <= 30 else ''
  return did_you_mean(name, known) or listing
