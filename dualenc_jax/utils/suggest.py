"""Suggestions of what a wrong name may mean."""

from collections.abc import Iterable
import difflib


def did_you_mean(name: str, known: Iterable[str]) -> str:
  """" Did you mean 'x' or 'y'?", or nothing when no known name is near.

  The dashes before flags make none of them nearer to another.
  """
  by_key = {_key(k): k for k in sorted(known)}
  close = difflib.get_close_matches(_key(name), by_key, n=3)
  if not close:
    return ''
  return f' Did you mean {" or ".join(repr(by_key[c]) for c in close)}?'


def _key(name: str) -> str:
  return name.lower().lstrip('-')


def did_you_mean_or_known(name: str, known: Iterable[str]) -> str:
  """`did_you_mean`, or a list of all known names when none is near."""
  known = sorted(set(known))
  listing = f' Known: {", ".join(known)}.' if 0 < len(known) <= 30 else ''
  return did_you_mean(name, known) or listing
