"""Layouts: placements are sound, tight, and of few shapes."""

import re

import numpy as np
import pytest
import text_reading

from dualenc_jax.data import batches as batches_lib, layouts, Packed, Padded
from dualenc_jax.data.batches import Batches
from dualenc_jax.data.order import Order
from dualenc_jax.data.text.ragged import Pool, Ragged
from dualenc_jax.objectives import pairs
from dualenc_jax.utils.errors import UserError

LIMIT = 64
LAYOUTS = [Padded(), Packed(), Packed(num_shapes=3)]


def lengths_of(kind, cells, texts, seed=0):
  """Lengths [cells, texts] of one kind or of each; 0 is a missing text."""
  rng = np.random.default_rng(seed)
  size = cells, texts
  kinds = {
      'natural': np.clip(rng.lognormal(2.5, 0.6, size), 1, LIMIT),
      'uniform': rng.integers(1, LIMIT + 1, size),
      'all long': np.full(size, LIMIT),
      'all one': np.ones(size),
      'some missing': rng.integers(0, 12, size) * rng.integers(0, 2, size),
      'none': np.zeros(size),
      'one long': np.where(np.arange(texts) == 3, LIMIT, 2) + np.zeros(size),
  }
  return (kinds[kind] if kind else np.stack([*kinds.values()])).astype(np.int64)


def check_placement(shape, placement, lengths):
  """All texts lie in their rows, one after the other, and come back whole."""
  texts = [[i + 1] * n for i, n in enumerate(lengths.ravel().tolist())]
  pool = Pool([(Ragged.from_rows(texts, np.int32), {})])
  rows = np.arange(lengths.size).reshape(lengths.shape)
  laid_out = layouts.lay_out(shape, placement, rows, lengths, pool.copy)
  assert sum(text_reading.texts_of(laid_out), []) == texts


@pytest.mark.parametrize('layout', LAYOUTS, ids=repr)
@pytest.mark.parametrize('kind, cells, texts', [
    ('natural', 4, 10), ('uniform', 1, 40), ('some missing', 4, 10),
    ('none', 2, 1), ('one long', 1, 40), ('all one', 4, 10),
])
def test_placements_are_sound(layout, kind, cells, texts):
  sample = lengths_of(kind, 12, texts, seed=1)
  shapes = layout.shapes(sample, LIMIT)
  # One holds all of the sample, and those before it a part.
  holding = shapes[: layout.num_shapes]
  for cell in sample:
    assert layout.place(holding[-1], cell[None]) is not None
  sizes = [shape.rows * shape.length for shape in shapes]
  assert sizes == sorted(sizes)
  for lengths in lengths_of(None, cells, texts):
    placements = [layout.place(shape, lengths) for shape in shapes]
    # Whatever comes, the last shape holds it.
    assert placements[-1] is not None
    for shape, placement in zip(shapes, placements):
      if placement is not None:
        check_placement(shape, placement, lengths)


def test_packed_is_near_the_fewest_rows():
  """As many as tokens / length rounded up, at best; well packed: 2% more."""
  lengths = lengths_of('natural', 20, 500)
  for cell in lengths:
    rows = Packed().shapes(cell[None], LIMIT)[0].rows
    assert rows <= np.ceil(cell.sum() / LIMIT) * 1.02 + 1


@pytest.mark.parametrize(
    'cells, k, count', [(8, 0, 256), (1, 0, 256), (8, 3, 8)]
)
def test_few_shapes_and_most_steps_take_the_first(
    cells, k, count, monkeypatch
):
  monkeypatch.setattr(batches_lib, 'SAMPLE_BATCHES', count)
  cache = text_reading.random_cache(2000)
  data = Batches([cache], 128, 0, 16, 64, k, layout=Packed(), cells=cells)
  assert len(data.shapes) <= 4
  seen = []
  for step in range(100):
    batch = data(step)
    seen.append((batch['queries'].tokens.shape, batch['passages'].tokens.shape))
  assert len(set(seen)) <= len(data.shapes)
  # A sample of few batches says less of those to come.
  usual = seen.count(max(set(seen), key=seen.count))
  assert usual >= (90 if count > 8 else 75)


@pytest.mark.parametrize('cells', [1, 4])
def test_more_shapes_leave_fewer_rows_empty(cells):
  """Each of them is taken by many of the steps."""
  cache = text_reading.random_cache(2000)
  shares = {}
  for count in (1, 4):
    data = Batches(
        [cache], 64, 0, 16, 64, layout=Packed(count), cells=cells
    )
    taken, filled, size = [0] * len(data.shapes), 0, 0
    for step in range(200):
      batch = data(step)
      sides = batch['queries'], batch['passages']
      shapes = tuple(side.tokens.shape[1:] for side in sides)
      taken[[tuple(s[:2] for s in x) for x in data.shapes].index(shapes)] += 1
      filled += sum(int(side.lengths.sum()) for side in sides)
      size += sum(side.tokens.size for side in sides)
    shares[count] = filled / size
    assert min(taken[: min(count, 3)]) >= 10, taken
    # The log says how many there are, and the share of all, not of the least.
    said = pairs._describe_layout(data, 0)
    share = int(re.search(r'(\d+)% of the tokens are real', said)[1]) / 100
    assert count == 1 or abs(share - shares[count]) < 0.04
    usual = len(data.usual_shapes)
    assert data.usual_shapes == data.shapes[:usual]
    assert sum(taken[:usual]) > 160 and 2 <= usual <= 4 or count == 1
    least, most = (data.shapes[i][1].rows for i in (0, usual - 1))
    rows = f'{least} to {most}' if count > 1 else least
    assert f'passages {rows} x 64' in said
    assert (f' {usual} shapes, ' in said) == (count > 1)
  assert shares[4] > shares[1] + (0.04 if cells == 1 else 0.02), shares


def test_a_number_of_shapes_is_one_of_programs_to_compile():
  with pytest.raises(UserError, match='num_shapes is 17; expected 1 to 16: ea'):
    Packed(17)


def test_texts_longer_than_all_of_the_sample_find_room(monkeypatch):
  """Nothing is lost when a batch is not like the others."""
  monkeypatch.setattr(batches_lib, 'SAMPLE_TEXTS', 1)  # Eight batches.
  size, batch = 40_960, 32
  # All of one batch of the epoch are as long as can be, all others short.
  order = Order((size,), (1.0,), batch, 0)
  lengths = np.full(size, 4)
  lengths[order(77)[0]] = LIMIT
  lengths[order(99)[0][:3]] = 30
  passages = [[5] * (n - 1) + [1] for n in lengths]
  queries = [[i // 200 + 2, i % 200 + 2] for i in range(size)]
  cache = text_reading.make_cache(queries, passages, None, 4, LIMIT)
  data = Batches([cache], batch, 0, 4, LIMIT, layout=Packed())
  used = {}
  for step in (0, 77, 99):
    found = data(step)
    used[step] = [shape[:2] for _, shape in data.shapes].index(
        found['passages'].tokens.shape[1:]
    )
    pairs = text_reading.pairs_of(found)
    examples = [200 * (q[0] - 2) + q[1] - 2 for q, *_ in pairs]
    assert sorted(examples) == sorted(order(step)[0].tolist())
    for example, (_, passage, _, _) in zip(examples, pairs):
      assert passage == passages[example]
  # The usual shape, then the padded one, and one of the larger ones.
  assert used[0] == 0 and 0 < used[99] <= used[77]
  assert data.shapes[-1][1] == (batch, LIMIT, 1) and used[77] > 0


def test_very_long_texts():
  """More tokens than 16 bits hold."""
  layout = Packed()
  lengths = np.array([[69_999, 3, 40_000, 12, 33_000, 5]])
  for shape in layout.shapes(lengths, 70_000):
    placement = layout.place(shape, lengths)
    assert placement is not None
    check_placement(shape, placement, lengths)
