"""The findings of an inspection: faults of a task and their remedies."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import enum

from dualenc_jax.data.check import counters, summary
from dualenc_jax.data.readers.rows import Occurrences, SHOWN

# Shares beyond which something is a finding.
_MANY_CUT, _MANY_UNKNOWN, _MANY_REPEATED = 0.05, 0.01, 0.01
# Fewer different pairs of a split than this are.
_FEW_PAIRS = 10


class Level(enum.Enum):
  """How bad a finding is."""

  UNUSABLE = 'cannot be used'
  WRONG = 'wrong'
  SUSPICIOUS = 'suspicious'


# Findings that are only counted: level, name in `found` of `Split` or `Texts`,
# the share of the pairs or texts that must be exceeded, words, advice.
PAIR_RULES = (
    (Level.SUSPICIOUS, 'blank_passages', 0.0, 'passages without a text',
     'They are ranked as empty texts. Remove them from a corpus of your own.'),
    (Level.SUSPICIOUS, 'equal_texts', 0.0, 'pairs whose query is their passage',
     'They teach nothing. Check the columns.'),
    (Level.WRONG, 'positive_negatives', 0.0,
     'pairs with their passage among their hard negatives',
     'Remove it from the negatives.'),
    (Level.SUSPICIOUS, 'repeated_pairs', _MANY_REPEATED,
     'pairs that repeat earlier ones', 'Keep one of each.'),
    (Level.SUSPICIOUS, 'copied_pairs', _MANY_REPEATED,
     'pairs with the texts of earlier ones, but other ids',
     'Keep them; `dualenc evaluate --equal_texts=one` measures them as one.'),
)
TEXT_RULES = (
    (Level.WRONG, 'blank', 0.0, '{plural} of nothing but whitespace',
     'Repair or remove them.'),
    (Level.SUSPICIOUS, 'long_words', 0.0,
     f'{{plural}} with a word of {counters.LONG_WORD:,} characters or more',
     'Repair or remove coded data and texts without spaces.'),
    (Level.SUSPICIOUS, 'lists', 0.0,
     '{plural} that are lists, with brackets and quotes',
     'Split those of passages and hard negatives by --gin.LIST_CELLS=True.'),
    (Level.SUSPICIOUS, 'garbled', 0.0,
     '{plural} that look decoded with the wrong encoding',
     'Read the original in its encoding, or repair them with ftfy, unless they'
     ' are of a benchmark.'),
    (Level.SUSPICIOUS, 'ids_of_several_texts', 0.0,
     '{kind} ids that name several texts', 'Give each text its own id.'),
)
_PLURALS = {
    'query': 'queries', 'passage': 'passages', 'negative': 'hard negatives'
}


@dataclasses.dataclass(frozen=True)
class Finding:
  """A fault and its remedy; `where` names one split or two."""

  level: Level
  where: str
  what: str
  advice: str
  places: Sequence[str] = ()


def find_faults(inspection: summary.Inspection) -> list[Finding]:
  """All findings, the worst first."""
  findings: list[Finding] = []
  options = inspection.options.values()
  lenient = all(each.get('strict') is False for each in options)
  for split in inspection.splits:
    findings += _unusable(split)
    findings += _rows(split, lenient)
    findings += _counted(PAIR_RULES, split.found, split.pairs, split.name)
    for kind, texts in split.kinds:
      words = {'kind': kind, 'plural': _PLURALS[kind]}
      findings += _counted(
          TEXT_RULES, texts.found, texts.count, split.name, **words
      )
      findings += _lengths(split, kind, texts)
  for overlap in inspection.overlaps:
    findings += _some(
        Level.SUSPICIOUS,
        f'{overlap.held_out}, {overlap.train}',
        overlap.queries,
        f'queries of {overlap.held_out} that are in {overlap.train}, too'
        f' (pairs: {overlap.pairs.count:,})',
        'Remove them from one of the two.',
    )
  order = list(Level)
  return sorted(findings, key=lambda finding: order.index(finding.level))


def _some(
    level: Level, where: str, found: Occurrences, what: str, advice: str
) -> Iterator[Finding]:
  """Yields a finding if the count is not 0; the number follows `what`."""
  if found.count:
    what = f'{what}: {found.count:,}'
    yield Finding(level, where, what, advice, found.places)


def _counted(
    rules: Sequence[tuple],
    found: Mapping[str, Occurrences],
    count: int,
    where: str,
    **words: str,
) -> Iterator[Finding]:
  """Yields the findings of some rules, with words filled in."""
  for level, name, share, what, advice in rules:
    if found[name].count > share * count:
      yield from _some(level, where, found[name], what.format(**words), advice)


def _unusable(split: summary.Split) -> Iterator[Finding]:
  passages = split.lone_passages + split.found['blank_passages'].count
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
        'Check the file and its columns.',
    )


def _rows(split: summary.Split, lenient: bool) -> Iterator[Finding]:
  # A command that reads the split ends at the first of these rows.
  level = Level.WRONG if lenient else Level.UNUSABLE
  advice = 'Repair the files.'
  if split.rows and not lenient:
    advice = 'Repair the files, or skip such rows with --gin.STRICT=False.'
  # Without a good row, the error is the finding.
  refused = {} if split.error and not split.rows else split.refused
  for reason, found in refused.items():
    what = f'refused, {reason}'
    yield from _some(level, split.name, found, what, advice)
  ranked_here = split.split == 'train' or not split.corpus
  for what, count in (
      ('queries without a passage', ranked_here * split.lone_queries),
      ('passages without a query, among pairs',
       bool(split.pairs) * split.lone_passages),
  ):
    advice = 'Give them one, or remove them.'
    yield from _some(Level.WRONG, split.name, Occurrences(count), what, advice)
  if 0 < split.distinct_pairs < _FEW_PAIRS:
    yield Finding(
        Level.SUSPICIOUS, split.name,
        f'different pairs: no more than {split.distinct_pairs}',
        'Check that the file is complete.',
    )


def _lengths(
    split: summary.Split, kind: str, texts: summary.Texts
) -> Iterator[Finding]:
  flag = f'--gin.{"QUERY" if kind == "query" else "PASSAGE"}_LENGTH'
  plural, lengths = _PLURALS[kind], texts.lengths
  # Up to a multiple of 8, which accelerators like.
  length = {p: -(-tokens // 8) * 8 for p, tokens in lengths.percentiles.items()}
  if lengths.truncated > _MANY_CUT:
    yield Finding(
        Level.SUSPICIOUS, split.name,
        f'{lengths.truncated:.1%} of {plural} are cut to {lengths.limit}'
        ' tokens',
        f'{flag}={length[95]} would cut 5% at most, {length[99]} 1%.',
    )
  if lengths.unknown > _MANY_UNKNOWN:
    yield Finding(
        Level.SUSPICIOUS, split.name,
        f'{lengths.unknown:.1%} of the tokens of {plural} are unknown to the'
        ' vocabulary',
        'Give a vocabulary made for such text, --gin.VOCABULARY=...',
    )
