"""The picture of an inspection: lengths of texts, drawn by matplotlib."""

import pathlib
from typing import Any

import numpy as np

from dualenc_jax.data.check import summary
from dualenc_jax.utils import figure, files

_COLOURS = {
    'query': figure.QUERY, 'passage': figure.PASSAGE, 'negative': '#3a9a4b'
}
_INCHES = (4.9, 2.4)  # Of a histogram.
_BINS = 48


def save(inspection: summary.Inspection, path: pathlib.Path) -> None:
  """Writes a PNG of some texts: a row a split, a column a kind of text.

  Raises:
    ImportError: matplotlib is not installed.
    UserError: the file cannot be written.
  """
  splits = [split for split in inspection.splits if split.kinds]
  there = {what for split in splits for what, _ in split.kinds}
  kinds = [what for what in _COLOURS if what in there]

  def draw(canvas: Any) -> None:
    grid = canvas.subplots(len(splits), len(kinds), squeeze=False)
    for split, row in zip(splits, grid):
      texts = dict(split.kinds)
      for what, axis in zip(kinds, row):
        if what in texts:
          _draw(axis, f'{split.name} {what}', texts[what], _COLOURS[what])
        else:
          axis.set_axis_off()
    vocabulary = pathlib.PurePath(inspection.vocabulary).name
    title = f'{inspection.task}: tokens of the vocabulary {vocabulary}'
    canvas.suptitle(figure.fit_text(title), fontsize=11, fontweight='bold')

  width, height = _INCHES
  inches = (width * len(kinds), height * len(splits) + 0.5)
  files.write(path, figure.drawn(inches, draw, ['png'])['png'])


def _draw(axis: Any, name: str, texts: summary.Texts, colour: str) -> None:
  """Draws a histogram of texts by their number of tokens, and the limit."""
  lengths = texts.lengths
  limit, (tokens, counts) = lengths.limit, np.array(lengths.counts).T
  shares = counts / counts.sum()
  # The longest 1% may lie beyond the axis.
  most = tokens[np.searchsorted(np.cumsum(shares), 0.99 - 1e-9)]
  end = max(most, limit) * 1.08
  width = int(np.ceil(end / _BINS))
  # Bins of whole numbers of tokens.
  edges = np.arange(0, end + width, width) + 0.5
  heights = np.histogram(tokens, edges, weights=shares)[0]
  axis.stairs(heights, edges, fill=True, color=colour, alpha=0.85)
  axis.set_xlim(0, edges[-1])
  axis.margins(y=0.16)
  title = (
      f'{name}: {texts.count:,}, median {lengths.percentiles[50]:,}, longest'
      f' {lengths.longest:,}, {lengths.truncated:.1%} cut'
  )
  axis.set_title(figure.fit_text(title), loc='left', fontsize=9)
  figure.format_percent(axis)
  axis.axvline(limit + 0.5, color='#6b6b6b', linewidth=1, linestyle='--')
  right = limit > edges[-1] / 2
  axis.annotate(
      f' limit {limit} ',
      (limit + 0.5, 0.98),
      xycoords=('data', 'axes fraction'),
      ha='right' if right else 'left',
      va='top',
      fontsize=9,
  )
