"""The findings of an inspection: faults of a task, and what mends them."""

from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import enum

from dualenc_jax.inspection import columns, summary
from dualenc_jax.readers.rows import Found

# Shares beyond which something is a finding.
_MANY_CUT, _MANY_UNKNOWN, _MANY_REPEATED, _FEW_UNIQUE = 0.05, 0.01, 0.01, 0.5
# Fewer different pairs of a split than this are.
_FEW_PAIRS = 10


class Level(enum.Enum):
  """How bad a finding is."""

  UNUSABLE = 'cannot be used'
  WRONG = 'wrong'
  SUSPICIOUS = 'suspicious'
  NOTE = 'worth knowing'


# Findings that are no more than counted: the level, the field of what was read,
# what there is, and the advice.
_OF_PAIRS = (
    (Level.SUSPICIOUS, 'blank_passages', 'passages without a text',
     'They are encoded and ranked as an empty text, so that the figures of a'
     ' benchmark stay comparable. Take them out of a corpus of your own.'),
    (Level.SUSPICIOUS, 'equal_texts', 'pairs whose query is their passage',
     'They teach nothing. See whether the columns are right; take them out.'),
    (Level.WRONG, 'positive_negatives',
     'pairs with their passage among their hard negatives',
     'The model is taught both. Take it out of the negatives.'),
    (Level.WRONG, 'other_positive_negatives',
     'hard negatives that are a passage of another pair of the same query',
     'The model is taught both. Take them out of the negatives.'),
)
_OF_TEXTS = (
    (Level.WRONG, 'blank', '{plural} of nothing but whitespace',
     'Mend them, or take them out.'),
    (Level.SUSPICIOUS, 'long_words',
     f'{{plural}} with a word of {columns.LONG_WORD:,} characters or more',
     'Not of a language: coded data, or spaces that are lost. Mend them, or'
     ' take them out.'),
    (Level.SUSPICIOUS, 'lists', '{plural} that are lists, with brackets and'
     ' quotes', '--gin.LIST_CELLS=True makes texts of their own of them, of'
     ' passages and hard negatives in files of pairs; or mend the file.'),
    (Level.SUSPICIOUS, 'mojibake',
     '{plural} that look decoded with the wrong encoding',
     'Decode the original as what it is (UTF-8, mostly), or mend them with'
     ' ftfy. Texts of a benchmark that come so, as those of MS MARCO, must'
     ' stay so for its figures to be comparable.'),
    (Level.SUSPICIOUS, 'replaced',
     '{plural} with U+FFFD, which stands for characters that are lost',
     'Decode the original again, as what it is.'),
    (Level.SUSPICIOUS, 'ids_of_several_texts',
     '{what} ids that name several texts',
     'Evaluation takes texts of one id for one. Give each its own id.'),
    (Level.NOTE, 'texts_of_several_ids', '{plural} with several ids',
     'Copies under other ids count as other passages in an evaluation; the'
     ' losses tell equal queries by their texts.'),
)
_OF_OVERLAPS = (
    (Level.SUSPICIOUS, 'queries',
     'queries of {held_out} that are in {train}, too (pairs: {pairs:,})',
     'What was trained on is not a test. Take them out of one.'),
    (Level.NOTE, 'passages', 'passages of {held_out} that are in {train}, too',
     'As it must be where both search one corpus; else take them out of one.'),
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
    found += _counted(_OF_PAIRS, split, split.name)
    for what, texts in split.kinds:
      words = {'what': what, 'plural': _PLURALS[what]}
      found += _counted(_OF_TEXTS, texts, split.name, **words)
      found += _lengths(split, what, texts)
  for overlap in inspection.overlaps:
    where = f'{overlap.held_out}, {overlap.train}'
    words = vars(overlap) | {'pairs': overlap.pairs.count}
    found += _counted(_OF_OVERLAPS, overlap, where, **words)
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


def serious(found: Iterable[Finding]) -> list[Finding]:
  """Those that are more than worth knowing."""
  return [finding for finding in found if finding.level is not Level.NOTE]


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
    yield Finding(Level.UNUSABLE, split.name, what, f'{read} were read.')
  elif not good:
    yield Finding(
        Level.UNUSABLE, split.name,
        f'no pair of a query and a relevant passage is in {read}',
        'See whether it is the right file, of the right columns.',
    )


def _rows(split: summary.Split, lenient: bool) -> Iterator[Finding]:
  if not split.rows:
    advice = 'Mend the files; without these rows there are none.'
  elif lenient:
    advice = 'STRICT=False leaves them out. Mend the files to have them, too.'
  else:
    advice = (
        'Mend the files, or leave such out with --gin.STRICT=False; without'
        ' it training and `dualenc data prepare` stop there.'
    )
  for reason, found in split.refused.items():
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
        'A pair learns from the passages of others, and figures over a few'
        ' queries are chance. See whether the file is whole.',
    )
  many = split.repeated_pairs.count > _MANY_REPEATED * split.pairs
  yield from _some(
      Level.SUSPICIOUS if many else Level.NOTE,
      split.name,
      split.repeated_pairs,
      'pairs that repeat earlier ones',
      'They weigh more than others. Keep one of each.',
  )
  if split.negatives.count:
    fewest, most = split.fewest_negatives, split.most_negatives
    counts = f'{fewest:,}' if fewest == most else f'{fewest:,} to {most:,}'
    if split.without_negatives:
      counts += f', {split.without_negatives:,} pairs have none'
    yield Finding(
        Level.NOTE, split.name, f'hard negatives a pair: {counts}',
        '--gin.NUM_NEGATIVES=K trains with K of them, 0 by default; a pair that'
        ' has fewer, with those.',
    )


def _lengths(
    split: summary.Split, what: str, texts: summary.Texts
) -> Iterator[Finding]:
  flag = f'--gin.{"QUERY" if what == "query" else "PASSAGE"}_LENGTH'
  plural, lengths = _PLURALS[what], texts.lengths
  # Up to a multiple of 8, which accelerators like.
  length = {p: -(-tokens // 8) * 8 for p, tokens in lengths.percentiles.items()}
  if split.split == 'train' and texts.unique < _FEW_UNIQUE:
    yield Finding(
        Level.NOTE, split.name,
        f'{texts.unique:.0%} of {plural} are unique; one occurs'
        f' {texts.most_repeated:,} times',
        'The losses mask equal texts out of the negatives. SamToNe on both'
        ' towers did not help where few passages are unique.',
        [texts.most_repeated_at],
    )
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
