"""The sets that the papers' tables have, by their names and in their order."""

from collections.abc import Collection, Iterable
import dataclasses
import enum
from typing import Any

from dualenc_jax.data.readers import beir, multireqa
from dualenc_jax.evaluation.results.result_files import Key, Model


class Benchmark(enum.Enum):
  """The table of the papers that a set is in."""

  QA = 'QA retrieval'
  BEIR = 'BEIR'
  OPEN_NQ = 'Open NQ'
  OTHER = 'other'


@dataclasses.dataclass(frozen=True)
class EvaluatedSet:
  """A column or row of a table, by its name in the papers.

  Its value is the mean of the results of `keys`.
  """

  benchmark: Benchmark
  name: str
  split: str
  keys: tuple[Key, ...]

  @property
  def full_name(self) -> str:
    """The name among sets of several benchmarks, some of which share names."""
    prefix = 'BEIR ' * (self.benchmark is Benchmark.BEIR)
    return f'{prefix}{self.name} {self.split}'.strip()

  def value(self, model: Model, metric: str) -> float | None:
    """A share of 0 to 1; None where a result or its metric is missing."""
    results = [model.results[key] for key in self.keys if key in model.results]
    values = [r.metrics[metric] for r in results if metric in r.metrics]
    if len(values) < len(self.keys):
      return None
    return sum(values) / len(values)


# The order is that of SamToNe's table 1, then sets that it has not.
_QA: dict[tuple[str, str | None, str], str] = {
    ('msmarco', None, 'validation'): 'MSMARCO',
    **{
        ('multireqa', name, 'validation' if qa_set.train_pairs else 'test'): (
            'NQ' if name == 'NaturalQuestions' else name
        )
        for name, qa_set in multireqa.SETS.items()
    },
}
# SamToNe's table 2. It calls Touché 2022 what is of 2020.
_BEIR = {
    'arguana': 'ArguAna',
    'bioasq': 'BioASQ',
    'climate-fever': 'Climate-Fever',
    'cqadupstack': 'CQADupStack',
    'dbpedia-entity': 'DBpedia-entity',
    'fever': 'Fever',
    'fiqa': 'FiQA-2018',
    'hotpotqa': 'HotpotQA',
    'nfcorpus': 'NFCorpus',
    'nq': 'NQ',
    'quora': 'Quora',
    'robust04': 'Robust04',
    'scidocs': 'SCIDOCS',
    'scifact': 'SciFact',
    'signal1m': 'Signal-1M',
    'trec-covid': 'Trec-Covid',
    'trec-news': 'Trec-News',
    'webis-touche2020': 'Touché-2020',
}
# Sets whose average the papers report.
QA_NAMES = ('MSMARCO', 'NQ', 'SQuAD', 'TriviaQA', 'SearchQA')
BEIR_NAMES = tuple(_BEIR.values())
_ORDER = {Benchmark.QA: tuple(_QA.values()), Benchmark.BEIR: BEIR_NAMES}

QA_METRICS = ('P@1', 'MRR')
BEIR_METRICS = ('nDCG@10',)
OPEN_NQ_METRICS = ('Top-5', 'Top-20', 'Top-100')
OTHER_METRICS = ('P@1', 'MRR', 'nDCG@10')
_METRICS = {
    'msmarco': QA_METRICS,
    'multireqa': QA_METRICS,
    'beir': BEIR_METRICS,
    'open_nq': OPEN_NQ_METRICS,
}


def paper_metrics(key: Key) -> tuple[str, ...]:
  """The metrics that the papers report on a task."""
  return _METRICS.get(key.task, OTHER_METRICS)


def group(keys: Collection[Key]) -> list[EvaluatedSet]:
  """The sets that these results are, in the papers' order.

  All parts of CQADupStack are one set; if one is missing each is its own. A
  split that the papers do not measure is of no benchmark, nor is a ranking of
  documents, or of equal texts as one.
  """
  by_name = {
      (key.task, key.dataset, key.split): key
      for key in keys
      if key.as_in_papers
  }
  known: list[Any] = [(Benchmark.QA, name, [one]) for one, name in _QA.items()]
  for dataset, name in _BEIR.items():
    ids = [('beir', part, 'test') for part in beir.parts(dataset)]
    known.append((Benchmark.BEIR, name, ids))
  known += [
      (Benchmark.OPEN_NQ, 'Open NQ', [one])
      for one in by_name
      if one[0] == 'open_nq'
  ]
  sets = [
      EvaluatedSet(benchmark, name, ids[0][-1], tuple(by_name[i] for i in ids))
      for benchmark, name, ids in known
      if all(one in by_name for one in ids)
  ]
  taken = {key for evaluated in sets for key in evaluated.keys}
  sets += [
      EvaluatedSet(Benchmark.OTHER, key.label, key.split, (key,))
      for key in {*keys} - taken
  ]
  return in_order(sets)


def in_order(sets: Iterable[EvaluatedSet]) -> list[EvaluatedSet]:
  """Each set once: by benchmark, then as in its table, else by name."""

  def place(evaluated: EvaluatedSet) -> tuple[int, int, str, str]:
    benchmark, name = evaluated.benchmark, evaluated.name
    order = _ORDER.get(benchmark, (name,))
    number = list(Benchmark).index(benchmark)
    return number, order.index(name), name, evaluated.split

  return sorted({*sets}, key=place)
