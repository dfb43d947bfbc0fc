"""The analyses of models on one sample, and the folder that is made of them."""

from collections.abc import Sequence
import dataclasses
import importlib.util
import pathlib
from typing import Any

from dualenc_jax.analysis import (
  dims as dims_lib,
  figures as figures_lib,
  lengths as lengths_lib,
  projector,
)
from dualenc_jax.analysis.sample import Sample, Setting
from dualenc_jax.analysis.vectors import Vectors
from dualenc_jax.errors import UserError
from dualenc_jax.figures.figure import Figure, save, write_csv
from dualenc_jax.interop.own import TRAINED_DIMS
from dualenc_jax.io import files


@dataclasses.dataclass(frozen=True)
class Analysis:
  """One model on one sample.

  Attributes:
    data: label, split and fingerprints of what the sample is from.
    provenance: of the model.
    sample: queries and passages.
    vectors: what the model makes of them.
    numbers: by name.
    lengths: of the sample's texts in the model's tokens.
  """

  data: dict[str, Any]
  provenance: dict[str, Any]
  sample: Sample
  vectors: Vectors
  numbers: dict[str, float]
  lengths: list[lengths_lib.Lengths]


def check_names(names: Sequence[str], models: int) -> None:
  """Raises UserError unless each model has a name of its own, in files too."""
  if len(names) != models or not all(names):
    raise UserError(
        f'--names={",".join(names)} for {models} --model_dir; expected a name'
        ' for each, with commas between.'
    )
  if len({projector.safe(name) for name in names}) < models:
    raise UserError(
        f'Two models have one name: {", ".join(names)}. Give --names=a,b.'
    )


def check_installed() -> None:
  """Raises UserError unless the libraries that draw and fit are installed."""
  packages = {'matplotlib': 'matplotlib', 'sklearn': 'scikit-learn'}
  missing = [packages[m] for m in packages if not importlib.util.find_spec(m)]
  if missing:
    raise UserError(
        f'`dualenc analyze` needs {" and ".join(missing)}:'
        " pip install 'dualenc-jax[plots]'."
    )


def check_same_data(first: Analysis, other: Analysis) -> None:
  """Raises UserError unless both models were given the same data."""
  for key, value in first.data.items():
    if other.data[key] != value:
      raise UserError(
          f'{first.vectors.name} and {other.vectors.name} are not of one data'
          f' set: {key} is {value!r} and {other.data[key]!r}. Name the task for'
          ' all, as by --gin_file=tasks/beir.gin.'
      )


def figures(analyses: Sequence[Analysis], mapped: int) -> list[Figure]:
  """All figures of one model or of several.

  Args:
    analyses: of one sample.
    mapped: queries, and passages, on the maps.
  """
  first = analyses[0]
  models = [a.vectors for a in analyses]
  setting = Setting(
      first.data['label'],
      first.data['split'],
      first.sample,
      {a.vectors.name: a.provenance['checkpoint_step'] for a in analyses},
      mapped,
  )
  apart = {a.vectors.name: a.numbers.get('separability') for a in analyses}
  sides = lengths_lib.merge(side for a in analyses for side in a.lengths)
  over_dims = []
  if all(vectors.mrr for vectors in models):
    over_dims.append(
        dims_lib.quality_figure(
            {vectors.name: vectors.mrr for vectors in models},
            {
                a.vectors.name: (
                    a.vectors.queries.shape[1],
                    *a.provenance.get(TRAINED_DIMS, ()),
                )
                for a in analyses
            },
            setting,
        )
    )
  return [
      figures_lib.tsne_figure(models, apart, setting),
      *figures_lib.pca_figures(models, setting),
      figures_lib.top_cosine_figure(models, setting),
      figures_lib.ratio_figure(models, setting),
      *over_dims,
      lengths_lib.length_figure(sides, setting),
  ]


def write(
    analyses: Sequence[Analysis], folder: pathlib.Path, mapped: int
) -> None:
  """Writes the figures, numbers.csv and analysis.json.

  analysis.json says of what data and sample everything is; then of one model
  `name`, its provenance and `numbers`, of several a list `models` of such; and
  in `figures` title, caption and files of each.

  Args:
    analyses: of one sample.
    folder: that is there.
    mapped: queries, and passages, on the maps.
  """
  saved = [save(figure, folder) for figure in figures(analyses, mapped)]
  names = number_names(analyses)
  columns = {
      a.vectors.name: [a.numbers.get(name, '') for name in names]
      for a in analyses
  }
  write_csv(folder / 'numbers.csv', {'number': names, **columns})
  sample = analyses[0].sample
  models = [
      {'name': a.vectors.name, **a.provenance, 'numbers': a.numbers}
      for a in analyses
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


def number_names(analyses: Sequence[Analysis]) -> list[str]:
  """The numbers that any of the models has."""
  return list(dict.fromkeys(name for a in analyses for name in a.numbers))


def table(analyses: Sequence[Analysis]) -> str:
  """The numbers as aligned text, a model a column."""
  lines = [f'{"":<24}' + ''.join(f'{a.vectors.name:>20}' for a in analyses)]
  for name in number_names(analyses):
    values = [a.numbers.get(name) for a in analyses]
    texts = ['' if value is None else f'{value:.4f}' for value in values]
    lines.append(f'{name:<24}' + ''.join(f'{text:>20}' for text in texts))
  return '\n'.join(lines)
