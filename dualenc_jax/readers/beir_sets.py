"""The data sets of the BEIR benchmark: names, splits, conventions, counts.

Names and splits: README of github.com/beir-cellar/beir, without nq-train.zip.
Counts: ir-datasets.com/beir.html, which counted the published files; of bioasq,
signal1m, trec-news and robust04 table 1 of arXiv 2104.08663. Texts of these
four may not be passed on, and rebuilt copies differ by a few passages. Bytes of
a download: checksums of the builder `beir` of TFDS.
"""

from collections.abc import Mapping
import dataclasses
import types

from dualenc_jax.errors import UserError
from dualenc_jax.suggest import did_you_mean

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

SETS: Mapping[str, BeirSet] = types.MappingProxyType({
    'msmarco': BeirSet(
        8_841_823,
        {'train': (502_939, 532_751), 'validation': (6_980, 7_437),
         'test': (43, 9_260)},
        1_082_258_632, titles=False, evaluated='validation'),
    'trec-covid': BeirSet(171_332, {'test': (50, 66_336)}, 73_876_720),
    'nfcorpus': BeirSet(
        3_633,
        {'train': (2_590, 110_575), 'validation': (324, 11_385),
         'test': (323, 12_334)}, 2_448_432),
    'bioasq': BeirSet(14_914_602, {'test': (500, None)}, 0, tolerance=0.01),
    'nq': BeirSet(2_681_468, {'test': (3_452, 4_201)}, 498_307_926),
    'hotpotqa': BeirSet(
        5_233_329,
        {'train': (85_000, 170_000), 'validation': (5_447, 10_894),
         'test': (7_405, 14_810)}, 654_025_350),
    'fiqa': BeirSet(
        57_638,
        {'train': (5_500, 14_166), 'validation': (500, 1_238),
         'test': (648, 1_706)}, 17_948_027, titles=False),
    'signal1m': BeirSet(
        2_866_316, {'test': (97, None)}, 0, titles=False, tolerance=0.01),
    'trec-news': BeirSet(594_977, {'test': (57, None)}, 0, tolerance=0.01),
    'robust04': BeirSet(
        528_155, {'test': (249, None)}, 0, titles=False, tolerance=0.01),
    'arguana': BeirSet(
        8_674, {'test': (1_406, 1_406)}, 3_773_617, self_hits=True),
    'webis-touche2020': BeirSet(
        382_545, {'test': (49, 2_214)}, 227_132_363, note=_TOUCHE),
    'quora': BeirSet(
        522_931, {'validation': (5_000, 7_626), 'test': (10_000, 15_675)},
        15_853_968, titles=False, self_hits=True),
    'dbpedia-entity': BeirSet(
        4_635_922, {'validation': (67, 5_673), 'test': (400, 43_515)},
        639_285_131),
    'scidocs': BeirSet(25_657, {'test': (1_000, 29_928)}, 142_471_588),
    'fever': BeirSet(
        5_416_568,
        {'train': (109_810, 140_085), 'validation': (6_666, 8_079),
         'test': (6_666, 7_937)}, 1_236_988_269),
    'climate-fever': BeirSet(
        5_416_593, {'test': (1_535, 4_681)}, 1_228_666_652),
    'scifact': BeirSet(
        5_183, {'train': (809, 919), 'test': (300, 339)}, 2_816_079),
    **{
        f'cqadupstack/{part}': BeirSet(
            passages, {'test': (queries, judgements)}, 5_343_728_040)
        for part, passages, queries, judgements in (
            ('android', 22_998, 699, 1_696),
            ('english', 40_221, 1_570, 3_765),
            ('gaming', 45_301, 1_595, 2_263),
            ('gis', 37_637, 885, 1_114),
            ('mathematica', 16_705, 804, 1_358),
            ('physics', 38_316, 1_039, 1_933),
            ('programmers', 32_176, 876, 1_675),
            ('stats', 42_269, 652, 913),
            ('tex', 68_184, 2_906, 5_154),
            ('unix', 47_382, 1_072, 1_693),
            ('webmasters', 17_405, 506, 1_395),
            ('wordpress', 48_605, 541, 744),
        )
    },
})
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
  raise UserError(
      f'BEIR has no data set {name!r}.{did_you_mean(name, (*SETS, *NAMES))}'
      f' Data sets: {", ".join(NAMES)}. A folder of your own in its layout is'
      ' read with --gin.BEIR_FOLDER=... (folder).'
  )


def one(name: str) -> BeirSet:
  """The row of a data set that has one corpus; raises UserError for others."""
  names = parts(name)
  if len(names) > 1:
    raise UserError(
        f'{name} is {len(names)} data sets, each with a corpus of its own, and'
        ' its figures are the means over them. Read one at a time:'
        f' {", ".join(names)}.'
    )
  return SETS[name]


def hint(name: str) -> str:
  """Where to get a data set, for the error about a missing file."""
  size = one(name).download
  if not size:
    return (
        'Its texts may not be passed on:'
        ' github.com/beir-cellar/beir/tree/main/examples/dataset says where to'
        ' ask for them and how to make the files.'
    )
  return (
      f'Unpack {URL}/{name.split("/")[0]}.zip ({size / 1e6:,.0f} MB) in the'
      ' folder of all BEIR sets.'
  )
