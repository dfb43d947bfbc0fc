"""Names that columns have elsewhere: of texts and ids, of pairs."""

from collections.abc import Collection, Mapping, Sequence
import re

from dualenc_jax.utils import untrusted

# By what they mean here; the first that a file has is taken.
ALIASES: Mapping[str, Sequence[str]] = {
    'query': ('query', 'anchor', 'question'),
    'passage': ('passage', 'positive', 'pos', 'document', 'context', 'answer'),
    'negatives': ('negatives', 'negative', 'neg'),
}
# Of ids and of texts, by split.
OF_TEXTS: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    'corpus': (
        ('_id', 'id', 'passage_id', 'pid', 'docid', 'doc_id', 'docno'),
        ('text', 'passage', 'contents', 'content', 'document', 'body'),
    ),
    'queries': (
        ('_id', 'id', 'query_id', 'qid'), ('text', 'query', 'question')
    ),
}
_KNOWN = {'title'}.union(
    *ALIASES.values(), *(names for both in OF_TEXTS.values() for names in both)
)
_ID = re.compile(r'_?(\w+[ _-])?id|[pqd]id|docid|docno', re.IGNORECASE)


def are_names(cells: Sequence[str], usual: Collection[str]) -> bool:
  """Whether the cells of a file's first row name its columns.

  They do if the first is a name of ids, or two are such names, known ones or
  among the `usual`.
  """
  cells = [cell.strip() for cell in cells]
  known = [
      cell.lower() in _KNOWN or cell in usual or bool(_ID.fullmatch(cell))
      for cell in cells
  ]
  return bool(_ID.fullmatch(cells[0])) or sum(known) > 1


def numbered(columns: Collection[str], name: str) -> list[str]:
  """The columns that are called `name`, or `name`_ and a number."""
  prefix = f'{name}_'
  return [
      c for c in columns
      if c == name
      or c.startswith(prefix) and untrusted.is_digits(c.removeprefix(prefix))
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
  """A sentence with the flag by which the file can be read, or ''."""
  names = renaming(columns, wanted)
  needed = {wanted['query'], wanted['passage']}
  if not names or needed - {*columns, *names.values()}:
    return ''
  pairs = ', '.join(f'{old!r} for {new!r}' for old, new in names.items())
  return (
      f' Did you mean {pairs[:200]}? --gin.COLUMN_ALIASES=True takes them so.'
  )
