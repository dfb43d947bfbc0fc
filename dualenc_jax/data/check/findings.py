"""The findings of an inspection: faults of a task, and what mends them."""

from collections.abc import Iterator, Sequence
import dataclasses
import enum

from dualenc_jax.data.check import columns, summary
from dualenc_jax.data.readers.rows import Found, SHOWN

# Shares beyond which something is a finding.
_MANY_CUT, _MANY_UNKNOWN, _MANY_REPEATED = 0.05, 0.01, 0.01
# Fewer different pairs of a split than this are.
_FEW_PAIRS = 10


class Level(enum.Enum):
  """How bad a finding is."""

  UNUSABLE = 'cannot be used'
  WRONG = 'wrong'
  SUSPICIOUS = 'suspicious'


# Findings that are no more than counted: the level, the field of what was read,
# what there is, and the advice.
_OF_PAIRS = (
    (Level.SUSPICIOUS, 'blank_passages', 'passages without a text',
     'They are ranked as an empty text. Take them out of your own corpus.'),
    (Level.SUSPICIOUS, 'equal_texts', 'pairs whose query is their passage',
     'They teach nothing. See whether the columns are right.'),
    (Level.WRONG, 'positive_negatives',
     'pairs with their passage among their hard negatives',
     'Take it out of the negatives.'),
    (Level.WRONG, 'other_positive_negatives',
     'hard negatives that are a passage of another pair of the same query',
     'Take them out of the negatives.'),
)
_OF_TEXTS = (
    (Level.WRONG, 'blank', '{plural} of nothing but whitespace',
     'Mend them, or take them out.'),
    (Level.SUSPICIOUS, 'long_words',
     f'{{plural}} with a word of {columns.LONG_WORD:,} characters or more',
     'Mend or take out coded data and texts that have lost their spaces.'),
    (Level.SUSPICIOUS, 'lists', '{plural} that are lists, with brackets and'
     ' quotes', '--gin.LIST_CELLS=True splits those of passages and hard'
     ' negatives in files of pairs; or mend the file.'),
    (Level.SUSPICIOUS, 'garbled',
     '{plural} that look decoded with the wrong encoding',
     'Decode the original as what it is, or mend them with ftfy; texts of a'
     ' benchmark must stay as they are.'),
    (Level.SUSPICIOUS, 'ids_of_several_texts',
     '{what} ids that name several texts', 'Give each text its own id.'),
)
_PLURALS = {
    'query': 'queries', 'passage': 'passages', 'negative': 'hard negatives'
}


@dataclasses.dataclass(frozen=True)
class Finding:
  """Something that is wrong or odd, and what to do about it.

  `where` names a split, or two; `places` are the first few.
  """

  level: Level
  where: str
  what: str
  advice: str
  places: Sequence[str] = ()


def findings(inspection: summary.Inspection) -> list[Finding]:
  """All findings, the worst first."""
  found: list[Finding] = []
  options = inspection.options.values()
  lenient = all(each.get('strict') is False for each in options)
  for split in inspection.splits:
    found += _use(split)
    found += _rows(split, lenient)
    found += _swapped(split)
    found += _counted(_OF_PAIRS, split, split.name)
    for what, texts in split.kinds:
      words = {'what': what, 'plural': _PLURALS[what]}
      found += _counted(_OF_TEXTS, texts, split.name, **words)
      found += _lengths(split, what, texts)
  for overlap in inspection.overlaps:
    found += _some(
        Level.SUSPICIOUS,
        f'{overlap.held_out}, {overlap.train}',
        overlap.queries,
        f'queries of {overlap.held_out} that are in {overlap.train}, too'
        f' (pairs: {overlap.pairs.count:,})',
        'Take them out of one.',
    )
  for missing in inspection.missing:
    found += _some(
        Level.WRONG,
        f'{missing.split}, {missing.corpus}',
        missing.passages,
        f'passages of {missing.split} that are not in {missing.corpus}',
        'They can never be found. Take the files of one version.',
    )
  order = list(Level)
  return sorted(found, key=lambda finding: order.index(finding.level))


def _some(
    level: Level, where: str, found: Found, what: str, advice: str
) -> Iterator[Finding]:
  """A finding if the count is not 0; the number follows `what`."""
  if found.count:
    what = f'{what}: {found.count:,}'
    yield Finding(level, where, what, advice, found.places)


def _counted(
    rules: Sequence[tuple], of: object, where: str, **words: object
) -> Iterator[Finding]:
  """What such rules find, their texts filled in with words."""
  for level, field, what, advice in rules:
    what = what.format(**words)
    yield from _some(level, where, getattr(of, field), what, advice)


def _use(split: summary.Split) -> Iterator[Finding]:
  passages = split.lone_passages + split.blank_passages.count
  # A corpus has no pairs, and questions over a corpus need none.
  good = split.pairs or (
      split.split != 'train'
      and (split.rows == passages > 0 or (split.corpus and split.lone_queries))
  )
  read = f'{split.rows:,} good and {split.num_refused:,} refused rows'
  if split.error:
    what = split.error.removesuffix('.')
    places = [] if split.rows else [
        place for found in split.refused.values() for place in found.places
    ]
    yield Finding(
        Level.UNUSABLE, split.name, what, f'{read} were read.', places[:SHOWN]
    )
  elif not good:
    yield Finding(
        Level.UNUSABLE, split.name,
        f'no pair of a query and a relevant passage is in {read}',
        'See whether it is the right file, of the right columns.',
    )


def _rows(split: summary.Split, lenient: bool) -> Iterator[Finding]:
  advice = 'Mend the files.'
  if split.rows and not lenient:
    advice = 'Mend the files, or leave such out with --gin.STRICT=False.'
  # Of nothing else the error has said it.
  refused = {} if split.error and not split.rows else split.refused
  for reason, found in refused.items():
    what = f'refused, {reason}'
    yield from _some(Level.WRONG, split.name, found, what, advice)
  ranked_here = split.split == 'train' or not split.corpus
  for what, count in (
      ('queries without a passage', ranked_here * split.lone_queries),
      ('passages without a query, among pairs',
       bool(split.pairs) * split.lone_passages),
  ):
    advice = 'Give them one, or take them out.'
    yield from _some(Level.WRONG, split.name, Found(count), what, advice)
  if 0 < split.distinct_pairs < _FEW_PAIRS and not split.limited:
    yield Finding(
        Level.SUSPICIOUS, split.name,
        f'different pairs: no more than {split.distinct_pairs}',
        'See whether the file is whole.',
    )
  for found, what, advice in (
      (split.repeated_pairs, 'pairs that repeat earlier ones',
       'Keep one of each.'),
      (split.copied_pairs, 'pairs with the texts of earlier ones, but other'
       ' ids', 'Keep them: each id is judged by itself, and `dualenc evaluate'
       ' --equal_texts=one` measures copies as one.'),
  ):
    if found.count > _MANY_REPEATED * split.pairs:
      yield from _some(Level.SUSPICIOUS, split.name, found, what, advice)


def _swapped(split: summary.Split) -> Iterator[Finding]:
  """Whether questions stand where passages should, and the longer texts where
  questions should: of one of the two alone there are good reasons."""
  asked, given = split.queries, split.passages
  if (
      2 * given.questions > given.count
      and 10 * asked.questions < asked.count
      and asked.lengths.percentiles[50] > given.lengths.percentiles[50]
  ):
    yield Finding(
        Level.SUSPICIOUS, split.name,
        f'{given.questions:,} of {given.count:,} passages are questions, but'
        f' {asked.questions:,} of {asked.count:,} queries, which are longer',
        'See whether the columns are swapped.',
    )


def _lengths(
    split: summary.Split, what: str, texts: summary.Texts
) -> Iterator[Finding]:
  flag = f'--gin.{"QUERY" if what == "query" else "PASSAGE"}_LENGTH'
  plural, lengths = _PLURALS[what], texts.lengths
  # Up to a multiple of 8, which accelerators like.
  length = {p: -(-tokens // 8) * 8 for p, tokens in lengths.percentiles.items()}
  if lengths.truncated > _MANY_CUT:
    yield Finding(
        Level.SUSPICIOUS, split.name,
        f'{lengths.truncated:.1%} of {plural} are cut to {lengths.limit}'
        ' tokens',
        f'{flag}={length[95]} would cut 5% at most, {length[99]} 1%; or make'
        ' the texts shorter.',
    )
  if lengths.unknown > _MANY_UNKNOWN:
    yield Finding(
        Level.SUSPICIOUS, split.name,
        f'{lengths.unknown:.1%} of the tokens of {plural} are unknown to the'
        ' vocabulary',
        'Give one that was made for such text, --gin.VOCABULARY=...',
    )
