"""Texts through any program in batches: chunks, order, results put back."""

import numpy as np
import pytest

from dualenc_jax.data.text.ragged import Ragged
from dualenc_jax.retrieval.encoding import towers
from dualenc_jax.retrieval.encoding.towers import Chunk, cut, deal, Shapes


@pytest.mark.parametrize('shapes', [Shapes(64, 8), Shapes(64, (8, 16, 64))])
@pytest.mark.parametrize('devices', [1, 3])
def test_a_program_sees_each_text_once_and_results_are_put_back(
    shapes, devices
):
  rng = np.random.default_rng(0)
  rows = [rng.integers(1, 100, n) for n in rng.integers(1, 60, 50)]
  tokens, lengths = Ragged.from_rows(rows, np.int32), set()

  def program(chunks):
    """Sums of tokens, and how many there are: a result of another shape."""
    assert chunks.shape[0] == devices
    lengths.add(chunks.shape[2])
    return np.stack([chunks.sum(2), (chunks > 0).sum(2)], axis=2)

  chosen = np.array([7, 3, 3, 49, 0, 21])
  out = towers.scatter(
      np.zeros((6, 2), int),
      towers.batches(program, tokens, 4, shapes, chosen, devices),
  )
  assert out.tolist() == [[sum(rows[i]), len(rows[i])] for i in chosen]
  assert lengths <= {shapes.padded_length(n) for n in range(1, 61)}


SHAPES = Shapes(max_tokens=2048, lengths=4)


@pytest.mark.parametrize('count', [0, 1, 2, 5, 16, 17, 700, 3001])
def test_chunks_hold_every_text_once_and_are_bounded(count):
  rng = np.random.default_rng(count)
  lengths = np.sort(rng.integers(1, 300, count))[::-1]
  chunks = list(cut(lengths, 64, SHAPES))
  places = [i for chunk in chunks for i in range(chunk.start, chunk.stop)]
  assert places == list(range(count))
  for chunk in chunks:
    assert chunk.length >= lengths[chunk.start]
    assert chunk.stop - chunk.start <= chunk.rows <= 64
    assert chunk.rows * chunk.length <= 2048
    # A set of a few texts takes a few rows.
    assert chunk.rows == 1 or chunk.rows < 2 * count
  # Texts are padded to a length that is too long only where there are few.
  padded = sum(chunk.rows * chunk.length for chunk in chunks)
  assert padded <= 1.15 * lengths.sum() + 8 * 2048


def test_devices_get_chunks_of_one_shape():
  a, b = [Chunk(i, i + 1, 1, 8) for i in range(5)], [Chunk(5, 6, 1, 16)]
  assert list(deal(a + b, 2)) == [a[:2], a[2:4], a[4:], b]
  assert list(deal(a + b, 8)) == [a, b]
  assert not list(deal([], 8))
