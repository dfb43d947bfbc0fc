"""The folder of an analysis of models on one sample."""

from collections.abc import Sequence
import pathlib

from dualenc_jax.analysis import figures
from dualenc_jax.analysis.analyse import Analysis
from dualenc_jax.figures.figure import save, write_csv
from dualenc_jax.io import files


def write(
    analyses: Sequence[Analysis], folder: pathlib.Path, mapped: int
) -> None:
  """Writes the figures, numbers.csv and analysis.json.

  analysis.json says of what data and sample everything is; then of one model
  `name`, its provenance and `numbers`, of several a list `models` of such; and
  in `figures` title, caption and files of each.

  Args:
    analyses: of one sample.
    folder: that exists.
    mapped: queries, and passages, on the maps.
  """
  saved = [save(f, folder) for f in figures.all_of(analyses, mapped)]
  names = _number_names(analyses)
  columns = {a.name: [a.numbers.get(n, '') for n in names] for a in analyses}
  write_csv(folder / 'numbers.csv', {'number': names, **columns})
  sample = analyses[0].sample
  models = [
      {'name': a.name, **a.provenance, 'numbers': a.numbers} for a in analyses
  ]
  facts = {
      **analyses[0].data,
      'queries': len(sample.queries),
      'passages': len(sample.passages),
      'passages_drawn': sample.kind,
      'passages_searched': len(sample.searched),
      'passages_in_corpus': len(sample.retrieval_set.corpus),
      'mapped': mapped,
      'draw_seed': sample.seed,
      **(models[0] if len(models) == 1 else {'models': models}),
      'figures': saved,
  }
  files.write_json(folder / 'analysis.json', facts)


def _number_names(analyses: Sequence[Analysis]) -> list[str]:
  """The numbers that any of the models has."""
  return list(dict.fromkeys(name for a in analyses for name in a.numbers))


def table(analyses: Sequence[Analysis]) -> str:
  """The numbers as aligned text, a model a column."""
  lines = [f'{"":<24}' + ''.join(f'{a.name:>20}' for a in analyses)]
  for name in _number_names(analyses):
    values = [a.numbers.get(name) for a in analyses]
    texts = ['' if value is None else f'{value:.4f}' for value in values]
    lines.append(f'{name:<24}' + ''.join(f'{text:>20}' for text in texts))
  return '\n'.join(lines)
