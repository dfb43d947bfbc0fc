"""Parts of the inspection: histograms, repeats, garbled texts."""

import numpy as np
import pytest

from dualenc_jax.data.check import counters
from dualenc_jax.data.check.summary import Lengths

SOUND = (
    'Größe, Maß und „Übermut“ in Köln: 5 °C, 3 Å², 2 × 4 ½',
    '«À Noël, où est l’été ?» Œuvre, ÇA, CAFÉ…',
    'Слово о полку Игореве',
    '東京都の天気はどうですか',
    'naïve résumé 🙂 ™ €5',
)


def test_lengths_against_numpy():
  tokens = np.append(np.random.default_rng(0).integers(1, 90, 1003), 700)
  lengths = Lengths.count(tokens.astype(np.int32), 89, 30)
  assert lengths.mean == pytest.approx(tokens.mean())
  assert (lengths.longest, lengths.limit) == (700, 89)
  for percent, length in lengths.percentiles.items():
    # The smallest that so many do not exceed.
    assert (tokens <= length).mean() >= percent / 100
    assert (tokens < length).mean() < percent / 100
  assert lengths.truncated == pytest.approx(1 / 1004)
  assert lengths.unknown == pytest.approx(30 / tokens.sum())
  nothing = Lengths.count(np.zeros(0, np.int32), 89, 0)
  assert (nothing.mean, nothing.longest) == (0, 0)


def test_first_rows_and_contradictions_against_dictionaries():
  rng = np.random.default_rng(2)
  keys, values = rng.integers(-60, 60, 300), rng.integers(0, 3, 300)
  rows = {}
  expected = [rows.setdefault(key, row) for row, key in enumerate(keys)]
  np.testing.assert_array_equal(counters.first_rows(keys), expected)
  first, other = {}, {}
  for row, (key, value) in enumerate(zip(keys, values)):
    if key and value and values[first.setdefault(key, row)] != value:
      other.setdefault(key, row)
  rows, firsts = counters.contradictions(keys, values)
  assert 10 < len(rows) < 100
  assert rows.tolist() == sorted(other.values())
  assert firsts.tolist() == [first[keys[row]] for row in rows]


@pytest.mark.parametrize('encoding, texts', [
    ('latin-1', SOUND),
    ('cp1252', ['it’s', 'café', 'Öl', 'Übel', '5 °C', '🙂', 'Слово']),
])
def test_utf_8_read_as_another_encoding_is_garbled(encoding, texts):
  for text in texts:
    assert counters.find_garbled(text) is None
    garbled = text.encode('utf-8').decode(encoding, 'replace')
    assert counters.find_garbled(garbled)
