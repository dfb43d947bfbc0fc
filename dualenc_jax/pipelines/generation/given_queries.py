"""A check that queries of the user belong to the corpus of an adaptation."""

from collections.abc import Iterator
import pathlib

from dualenc_jax.data.readers import Texts
from dualenc_jax.pipelines.generation import output
from dualenc_jax.utils import json_file
from dualenc_jax.utils.errors import UserError


def check(folder: pathlib.Path, corpus: str) -> None:
  """Raises UserError for queries of the passages of another corpus.

  Texts are compared where `output.write` wrote the folder; in one of the user's
  own, whose texts may have been edited, ids alone.

  Args:
    folder: queries and their corpus.jsonl.
    corpus: a file or a folder that `readers.Texts` reads.
  """
  # Rows that are left out are logged where all of them are read.
  own, other = (Texts(str(path), strict=False) for path in (folder, corpus))
  facts = folder / output.FACTS
  written = facts.is_file()
  known = [own.fingerprint('corpus')]
  if written:
    saved = json_file.read(facts, 'Generate the queries anew.')
    known.append(saved.get('corpus', ''))
  if other.fingerprint('corpus') in known:
    return
  there = dict(_hashes(other))
  for name, text in _hashes(own):
    if name not in there or (written and there[name] != text):
      other_text = 'has another text for' if name in there else 'does not have'
      raise UserError(
          f'{folder} has queries of another corpus than {corpus}: one is of the'
          f' passage {name!r}, which the latter {other_text}. Give the queries'
          ' and corpus that belong together.'
      )


def _hashes(texts: Texts) -> Iterator[tuple[str, int]]:
  """Ids, and hashes of their texts."""
  for row in texts.examples('corpus'):
    yield row['passage_id'], hash(row['passage'].strip())
