"""The picture of an inspection: lengths of texts, drawn by matplotlib."""

import pathlib
from typing import Any

import numpy as np

from dualenc_jax.figures import drawing, figure
from dualenc_jax.inspection import summary
from dualenc_jax.io import files

_COLOURS = {
    'query': drawing.QUERY, 'passage': drawing.PASSAGE, 'negative': '#3a9a4b'
}
_INCHES = (4.9, 2.4)  # Of a histogram.


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
    canvas.suptitle(drawing.fitted(title), fontsize=11, fontweight='bold')

  width, height = _INCHES
  inches = (width * len(kinds), height * len(splits) + 0.5)
  files.write(path, figure.drawn(inches, draw, ['png'])['png'])


def _draw(axis: Any, name: str, texts: summary.Texts, colour: str) -> None:
  lengths = texts.lengths
  title = (
      f'{name}: {texts.count:,}, median {lengths.percentiles[50]:,}, longest'
      f' {lengths.longest:,}, {lengths.truncated:.1%} cut'
  )
  tokens, counts = np.array(lengths.counts).T
  drawing.draw_lengths(axis, tokens, counts, lengths.limit, title, colour)
  axis.title.set_fontsize(9)
