"""An estimate of the examples in a file, and sizes on disk as text."""

from collections.abc import Mapping, Sequence
import gzip
import itertools
import os
import re
from typing import Any

# Formats with a row a line; a line of others may be the whole file.
_LOCATION = re.compile(r'(.+\.(?:jsonl|tsv)(\.gz)?):([0-9]+)')


def count(examples: Sequence[Mapping[str, Any]]) -> int | None:
  """Estimates how many examples a file of lines has from its first `examples`.

  None unless all `examples` come from one such file.
  """
  matches = (_LOCATION.fullmatch(e['location']) for e in examples)
  found = [match.groups() for match in matches if match]
  if len(found) < len(examples) or len({path for path, *_ in found}) != 1:
    return None
  path, zipped, line = found[-1]
  try:
    with open(path, 'rb') as file:
      lines = gzip.GzipFile(fileobj=file) if zipped else file
      for _ in itertools.islice(lines, int(line)):
        pass
      return round(len(examples) * os.path.getsize(path) / file.tell())
  except (OSError, EOFError, ZeroDivisionError):
    return None


def gigabytes(size: float) -> str:
  """'1.23 GB', or '45.6 MB' below one."""
  if size < 1e9:
    return f'{size / 1e6:,.1f} MB'
  return f'{size / 1e9:,.2f} GB'
