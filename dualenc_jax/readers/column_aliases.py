"""Names that columns of query, passage and hard negatives have elsewhere."""

from collections.abc import Collection, Mapping

# By what they mean here; the first that a file has is taken.
ALIASES: Mapping[str, Collection[str]] = {
    'query': ('query', 'anchor', 'question'),
    'passage': ('passage', 'positive', 'pos', 'document', 'context', 'answer'),
    'negatives': ('negatives', 'negative', 'neg'),
}


def numbered(columns: Collection[str], name: str) -> list[str]:
  """The columns that are called `name`, or `name`_ and a number."""
  prefix = f'{name}_'
  return [
      c for c in columns
      if c == name
      or c.startswith(prefix) and c.removeprefix(prefix).isdecimal()
  ]


def renaming(
    columns: Collection[str], wanted: Mapping[str, str | None]
) -> dict[str, str]:
  """What columns of a file are to be called instead, by what they are called.

  `wanted` has names by what they mean; those that the file has, or that are
  None or not the usual ones, stay.
  """
  found: dict[str, str] = {}
  for meaning, names in ALIASES.items():
    name = wanted[meaning]
    if name != meaning or numbered(columns, name):
      continue
    for alias in names:
      if have := numbered(columns, alias):
        found |= {c: name + c.removeprefix(alias) for c in have}
        break
  return found


def did_you_mean(
    columns: Collection[str], wanted: Mapping[str, str | None]
) -> str:
  """A sentence with the flag, or the task, by which the file can be read."""
  names = renaming(columns, wanted)
  missing = {wanted['query'], wanted['passage']} - {*columns, *names.values()}
  if 'answers' in columns and wanted['passage'] not in columns:
    return (
        ' Questions with answers and no passages measure a model by the answers'
        ' that are in its hits: `dualenc evaluate --tasks=open_nq` reads DPR\'s'
        ' files.'
    )
  if missing or not names:
    return ''
  pairs = ', '.join(f'{old!r} for {new!r}' for old, new in names.items())
  return (
      f' Did you mean {pairs[:200]}? --gin.COLUMN_ALIASES=True takes them so.'
  )
