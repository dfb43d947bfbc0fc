"""'Did you mean': the known names near a wrong one."""

from collections.abc import Iterable
import difflib


def did_you_mean(name: str, known: Iterable[str]) -> str:
  """" Did you mean 'x'?", or all known names when none is near and few are."""
  known = sorted(set(known))
  by_lower = {k.lower(): k for k in known}
  close = difflib.get_close_matches(name.lower(), by_lower, n=3)
  if close:
    return f' Did you mean {" or ".join(repr(by_lower[c]) for c in close)}?'
  return f' Known: {", ".join(known)}.' if 0 < len(known) <= 30 else ''
