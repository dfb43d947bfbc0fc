"""Quality over dims: what is left of it in the first components of vectors."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np

from dualenc_jax.analysis.sample import Setting
from dualenc_jax.figures import drawing
from dualenc_jax.figures.figure import Figure
from dualenc_jax.search.exact_search import ExactSearch

_LEAST, _HALVINGS = 8, 6


@dataclasses.dataclass(frozen=True)
class FirstComponents:
  """A store of rows [N, D] as one of [N, d], of length one; nothing is kept.

  Attributes:
    rows: an array, or any store that `ExactSearch` takes.
    dim: d.
  """

  rows: Any
  dim: int
  dtype = np.dtype(np.float32)

  @property
  def shape(self) -> tuple[int, int]:
    return len(self.rows), self.dim

  def __len__(self) -> int:
    return len(self.rows)

  def __getitem__(self, key: Any) -> np.ndarray:
    found = np.asarray(self.rows[key])[..., : self.dim].astype(np.float64)
    lengths = np.linalg.norm(found, axis=-1, keepdims=True)
    # Of a row that is zero nothing is left.
    return (found / np.where(lengths == 0, 1, lengths)).astype(np.float32)


def default_dims(dim: int, trained_dims: Sequence[int] = ()) -> list[int]:
  """D and its halves, and what the model was trained for, largest first."""
  halves = [dim // 2**i for i in range(_HALVINGS)]
  found = {d for d in halves if d >= _LEAST} | {*trained_dims, dim}
  return sorted(found, reverse=True)


def mrr(
    queries: np.ndarray,
    encoded: Any,
    ids: Sequence[str],
    gold: Sequence[Sequence[int]],
    self_hits: np.ndarray | None,
    dims: Sequence[int],
) -> dict[int, float]:
  """Mean reciprocal ranks, by exact search with the first components.

  Args:
    queries: float32 [Q, D].
    encoded: a store of rows [M, D].
    ids: of the rows.
    gold: for each query the rows that are relevant; queries without any are
      left out.
    self_hits: as of `ExactSearch.gold_ranks`.
    dims: from 1 to D.

  Returns:
    By dim.
  """
  rows = np.flatnonzero([len(own) for own in gold])
  queries, gold = queries[rows], [gold[i] for i in rows]
  own = None if self_hits is None else self_hits[rows]
  found = {}
  for dim in dims:
    q, p = (FirstComponents(vectors, dim) for vectors in (queries, encoded))
    ranks = ExactSearch(p, ids).gold_ranks(q[:], gold, own)
    found[dim] = float(np.mean(1 / ranks))
  return found


def quality_figure(
    by_model: Mapping[str, Mapping[int, float]],
    trained_dims: Mapping[str, Sequence[int]],
    setting: Setting,
) -> Figure:
  """A curve a model: MRR over how many components are left.

  Args:
    by_model: MRR by dim, by model.
    trained_dims: by model, the whole among them.
    setting: of what it is made.
  """
  columns = {'model': [], 'dim': [], 'trained': [], 'mrr': []}
  for name, values in by_model.items():
    for dim, value in sorted(values.items(), reverse=True):
      columns['model'].append(name)
      columns['dim'].append(dim)
      columns['trained'].append(int(dim in trained_dims[name]))
      columns['mrr'].append(value)
  count = len(setting.sample.pair_queries)
  return Figure(
      name='dims',
      title='Quality over dims',
      caption=(
          'Mean reciprocal rank with the first components of vectors, of length'
          f' one again, by exact search of {count:,} queries in'
          f' {setting.searched}. Full marks are dims that a model was trained'
          f' for. {setting.where}'
      ),
      columns=columns,
      inches=drawing.curve_inches(len(by_model)),
      draw=lambda canvas: _draw(canvas, by_model, trained_dims),
  )


def _draw(
    canvas: Any,
    by_model: Mapping[str, Mapping[int, float]],
    trained_dims: Mapping[str, Sequence[int]],
) -> None:
  axis = canvas.subplots()
  for number, (name, values) in enumerate(by_model.items()):
    dims = sorted(values)
    known = trained_dims[name]
    style = drawing.model_style(number)
    heights = [values[dim] for dim in dims]
    label = drawing.fitted(
        f'{name}: {heights[-1]:.3f} with {dims[-1]}',
        canvas.get_figwidth() - 0.6,
    )
    axis.plot(dims, heights, label=label, linewidth=1.8, **style)
    axis.scatter(
        dims,
        heights,
        s=26,
        zorder=3,
        edgecolors=style['color'],
        facecolors=[style['color'] if d in known else 'white' for d in dims],
    )
  every = sorted({dim for values in by_model.values() for dim in values})
  axis.set_xscale('log', base=2)
  axis.set_xticks(every, map(str, every))
  axis.minorticks_off()
  axis.margins(y=0.06)
  axis.set_ylim(0)
  axis.set_xlabel('components')
  axis.set_ylabel('MRR')
  axis.grid(axis='y')
  canvas.legend(loc='outside upper left', ncols=1, handlelength=2.2)
