"""The picture of an inspection: how long the texts are. Needs matplotlib."""

import pathlib

import numpy as np

from dualenc_jax.inspection import summary

_COLOURS = {'query': '#4269d0', 'passage': '#3a9a4b', 'negative': '#e4793b'}
_GREY = '#5b5b5b'
_BINS = 64
_INCHES = (4.4, 2.3)  # Of a histogram.


def save(inspection: summary.Inspection, path: pathlib.Path) -> None:
  """Writes a PNG: a row a split, a column a kind of text.

  Args:
    inspection: with some text in it.
    path: of the file.

  Raises:
    ImportError: matplotlib is not installed.
  """
  # Not through pyplot, which would look for a screen.
  from matplotlib.figure import Figure

  splits = [split for split in inspection.splits if split.kinds]
  there = {what for split in splits for what, _ in split.kinds}
  kinds = [what for what in _COLOURS if what in there]
  width, height = _INCHES
  figure = Figure(
      figsize=(width * len(kinds), height * len(splits) + 0.5),
      layout='constrained',
  )
  grid = figure.subplots(len(splits), len(kinds), squeeze=False)
  for split, row in zip(splits, grid):
    texts = dict(split.kinds)
    for what, axes in zip(kinds, row):
      if what in texts:
        _draw(axes, f'{split.name} {what}', texts[what], _COLOURS[what])
      else:
        axes.set_axis_off()
  vocabulary = pathlib.PurePath(inspection.vocabulary).name
  figure.suptitle(
      f'{inspection.task}: tokens of the vocabulary {vocabulary}',
      fontsize=11,
      fontweight='bold',
  )
  figure.savefig(path, dpi=150)


def _draw(axes, name: str, texts: summary.Texts, colour: str) -> None:
  lengths = texts.lengths
  end = max(lengths.percentiles[99], lengths.limit) * 1.1
  width = int(np.ceil(end / _BINS))
  # Bins of whole numbers of tokens. The last 1% may be beyond the picture.
  edges = np.arange(0, end + width, width) + 0.5
  tokens, counts = np.array(lengths.counts).T
  shares = counts / counts.sum()
  axes.hist(tokens, edges, weights=shares, color=colour)
  axes.axvline(lengths.limit + 0.5, color=_GREY, linewidth=1, linestyle='--')
  left = lengths.limit > edges[-1] / 2
  axes.annotate(
      f'limit {lengths.limit}',
      (lengths.limit + 0.5, 1),
      (-4 if left else 4, -2),
      xycoords=('data', 'axes fraction'),
      textcoords='offset points',
      ha='right' if left else 'left',
      va='top',
      fontsize=8,
      color=_GREY,
  )
  axes.set_title(
      f'{name}: {texts.count:,}, median {lengths.percentiles[50]:,},'
      f' longest {lengths.longest:,}, {lengths.truncated:.1%} cut',
      fontsize=9,
      loc='left',
  )
  axes.set_xlim(0.5, edges[-1])
  axes.margins(y=0.12)
  axes.yaxis.set_major_formatter(lambda share, _: f'{100 * share:.3g}%')
  axes.locator_params(axis='y', nbins=4)
  axes.tick_params(labelsize=8, length=2, color=_GREY)
  axes.grid(axis='y', color='#e5e5e5', linewidth=0.6)
  axes.set_axisbelow(True)
  axes.spines[['top', 'right', 'left']].set_visible(False)
