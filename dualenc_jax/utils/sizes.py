"""An estimate of the examples in a file, and sizes on disk as text."""

from collections.abc import Mapping, Sequence
import gzip
import itertools
import os
import re
from typing import Any

# Formats whose rows are numbered by their lines, or, in Parquet, counted. The
# line of a JSON array may be the whole file.
_LOCATION = re.compile(r'(.+\.(?:jsonl|tsv|csv|(parquet))(\.gz)?):([0-9]+)')


def count(examples: Sequence[Mapping[str, Any]]) -> int | None:
  """Estimates how many examples a file has from its first `examples`.

  None unless all `examples` come from one file of lines, or of Parquet.
  """
  matches = (_LOCATION.fullmatch(e['location']) for e in examples)
  found = [match.groups() for match in matches if match]
  if len(found) < len(examples) or len({path for path, *_ in found}) != 1:
    return None
  path, is_parquet, zipped, line = found[-1]
  try:
    if is_parquet:
      from pyarrow import parquet

      rows = parquet.read_metadata(path).num_rows
      return round(len(examples) * rows / int(line))
    with open(path, 'rb') as file:
      lines = gzip.GzipFile(fileobj=file) if zipped else file
      for _ in itertools.islice(lines, int(line)):
        pass
      return round(len(examples) * os.path.getsize(path) / file.tell())
  except (ImportError, OSError, ValueError, EOFError, ZeroDivisionError):
    return None


def gigabytes(size: float) -> str:
  """'1.23 GB', or '45.6 MB' below one."""
  if size < 1e9:
    return f'{size / 1e6:,.1f} MB'
  return f'{size / 1e9:,.2f} GB'
