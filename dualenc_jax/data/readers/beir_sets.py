"""The data sets of the BEIR benchmark: names, splits, conventions, counts.

Names and splits: README of github.com/beir-cellar/beir, without nq-train.zip.
Counts: ir-datasets.com/beir.html, which counted the published files; of bioasq,
signal1m, trec-news and robust04 table 1 of arXiv 2104.08663. Texts of these
four may not be passed on, and rebuilt copies differ by a few passages. Bytes of
a download: checksums of the builder `beir` of TFDS.
"""

from collections.abc import Iterator, Mapping
import dataclasses
import pathlib
import types
from typing import Any

from dualenc_jax.utils.errors import did_you_mean, UserError

URL = 'https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets'


@dataclasses.dataclass(frozen=True)
class BeirSet:
  """A data set of the benchmark, or a part of cqadupstack.

  Attributes:
    passages: published size of the corpus, None where it is not known.
    splits: published counts of (judged queries, judgements) by split.
    download: bytes of its zip file, 0 if it may not be passed on.
    titles: whether passages have titles; BEIR's models put them in front.
    self_hits: whether queries are passages, too, under the same ids; BEIR ranks
      a query's own id nowhere.
    evaluated: the split that the benchmark measures.
    tolerance: share by which a faithful copy may differ from the counts.
    note: what else to know before comparing figures.
  """

  passages: int | None
  splits: Mapping[str, tuple[int, int | None]]
  download: int = 0
  titles: bool = True
  self_hits: bool = False
  evaluated: str = 'test'
  tolerance: float = 0.0
  note: str = ''

  def published(self, split: str) -> dict[str, int]:
    """Counts by name, as far as they are known: passages, and of the split."""
    queries, judgements = self.splits.get(split, (None, None))
    names = 'passages', 'queries', 'judgements'
    counts = zip(names, (self.passages, queries, judgements))
    return {name: count for name, count in counts if count is not None}


OWN_FOLDER = BeirSet(None, {})
_TOUCHE = (
    'These are version 2, with 2,214 judgements of grades 0 to 2. Version 1 has'
    ' 2,962 of grades -2 to 5; webis-touche2020-v3 has 2,849 over a smaller'
    ' corpus, and its figures are not comparable.'
)

_NOTES = {'webis-touche2020': _TOUCHE}


def _read() -> Iterator[tuple[str, BeirSet]]:
  """Yields the rows of beir_sets.tsv, of a split 'queries/judgements'."""
  text = pathlib.Path(__file__).with_suffix('.tsv').read_text('utf-8')
  for line in text.splitlines()[1:]:
    name, passages, *cells, download, remarks = line.split('\t')
    splits: dict[str, Any] = {
        split: tuple(int(n) if n else None for n in cell.split('/'))
        for split, cell in zip(('train', 'validation', 'test'), cells)
        if cell
    }
    yield name, BeirSet(
        int(passages), splits, int(download or 0),
        titles='no titles' not in remarks,
        self_hits='self hits' in remarks,
        evaluated='validation' if name == 'msmarco' else 'test',
        tolerance=0.01 if 'rebuilt' in remarks else 0.0,
        note=_NOTES.get(name, ''),
    )


SETS: Mapping[str, BeirSet] = types.MappingProxyType(dict(_read()))
# Figures of cqadupstack are means over these: each has a corpus of its own.
CQADUPSTACK_PARTS = tuple(name for name in SETS if '/' in name)
NAMES = tuple(sorted({*SETS, 'cqadupstack'} - {*CQADUPSTACK_PARTS}))
# The 18 that the paper averages over: on msmarco models are trained.
ZERO_SHOT = tuple(name for name in NAMES if name != 'msmarco')


def parts(name: str) -> tuple[str, ...]:
  """The rows of SETS whose mean a data set's figures are; or UserError."""
  if name == 'cqadupstack':
    return CQADUPSTACK_PARTS
  if name in SETS:
    return (name,)
  known = (*SETS, *NAMES)
  raise UserError(
      f'BEIR has no data set {name!r}.{did_you_mean(name, known)} Data sets:'
      f' {", ".join(NAMES)}.'
  )


def one(name: str) -> BeirSet:
  """The row of a data set that has one corpus; raises UserError for others."""
  names = parts(name)
  if len(names) > 1:
    raise UserError(
        f'{name} is {len(names)} data sets, of which its figures are the means.'
        f' Read one at a time: {", ".join(names)}.'
    )
  return SETS[name]


def hint(name: str) -> str:
  """Where to get a data set, for the error about a missing file."""
  size = one(name).download
  if not size:
    return (
        'Its texts may not be passed on:'
        ' github.com/beir-cellar/beir/tree/main/examples/dataset says where to'
        ' ask for them.'
    )
  return f'Unpack {URL}/{name.split("/")[0]}.zip ({size / 1e6:,.0f} MB) there.'
