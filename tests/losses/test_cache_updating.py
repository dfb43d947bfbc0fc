"""What a negative cache holds after each step, against a list in Python."""

import cache_cases
import jax
import numpy as np
import pytest

from dualenc_jax.losses.negative_cache import empty, oldest, update

pytestmark = pytest.mark.devices(8)

SIZE, FEATURES, LENGTH = 24, 2, 3


class Slots:
  """A cache as a list of {text, embedding, age}."""

  def __init__(self, cache, texts):
    self.slots = [
        {'text': text, 'embedding': embedding, 'age': 0}
        for text, embedding in zip(texts.tolist(), cache.embeddings)
    ]

  def step(self, refreshed, batch):
    """Pairs (slot, embedding), None for no slot, and (text, embedding)."""
    touched, encoded, new = set(), set(), []

    def refresh(slot, embedding):
      if slot in encoded:
        return
      encoded.add(slot)
      self.slots[slot]['embedding'] = embedding
      self.slots[slot]['age'] = 0
      touched.add(slot)

    where = {s['text']: i for i, s in enumerate(self.slots)}
    once = {}
    for text, embedding in batch:
      once.setdefault(text, embedding)
    for text, embedding in once.items():
      if text in where:
        refresh(where[text], embedding)
      else:
        new.append({'text': text, 'embedding': embedding, 'age': 0})
    for slot, embedding in refreshed:
      if slot is not None:
        refresh(slot, embedding)
    for slot, entry in zip(self.by_age(), new):
      self.slots[slot] = entry
      touched.add(slot)
    for i, entry in enumerate(self.slots):
      if i not in touched:
        entry['age'] += 1

  def by_age(self):
    """The oldest first."""
    return sorted(range(len(self.slots)), key=lambda i: -self.slots[i]['age'])


def tokens_of(texts):
  return np.stack([texts + 1, texts % 7, 0 * texts], axis=-1).astype(np.int32)


def assert_equal(cache, slots):
  cache = jax.device_get(cache)
  assert cache.tokens.dtype == np.uint16
  for i, entry in enumerate(slots.slots):
    text = np.array(entry['text'])
    np.testing.assert_array_equal(cache.ids[i], cache_cases.ids_of(text))
    np.testing.assert_array_equal(cache.tokens[i], tokens_of(text))
    np.testing.assert_array_equal(cache.embeddings[i], entry['embedding'])
    assert cache.age[i] == entry['age']


def programs(devices, count):
  """update and oldest, jitted on a mesh."""

  def updated(cache, sampled, kept, passages, tokens, ids):
    return update(cache, [sampled, kept], passages, tokens, ids)

  return (
      cache_cases.on_devices(devices, updated, 6),
      cache_cases.on_devices(devices, lambda c: oldest(c, count), 1),
  )


@pytest.mark.parametrize('devices', [1, 8])
def test_many_steps(devices):
  """40 texts and 24 slots, 8 passages and 8 + 8 refreshed slots a step."""
  rng = np.random.default_rng(devices)
  updated, found_oldest = programs(devices, 5)
  first = np.arange(100, 100 + SIZE)
  cache = empty(SIZE, LENGTH, FEATURES, 64)._replace(
      embeddings=rng.normal(size=(SIZE, FEATURES)).astype(np.float32),
      tokens=tokens_of(first).astype(np.uint16), ids=cache_cases.ids_of(first),
  )
  slots = Slots(cache, first)
  replaced = present = 0
  for step in range(80):
    texts = rng.integers(0, 40, 8)
    sampled = rng.integers(0, SIZE + 1, (8, 1)).astype(np.int32)
    # As it is used: some that are refreshed are the oldest, fetched before.
    rows = jax.device_get(found_oldest(cache))
    assert_oldest(rows, slots, devices)
    old = np.pad(rows.slots, (0, 8 - len(rows.slots)), constant_values=SIZE)
    vectors = rng.normal(size=(3, 8, FEATURES)).astype(np.float32)
    before = {s['text'] for s in slots.slots}
    slots.step(
        [
            (None if slot == SIZE else int(slot), vector)
            for slot, vector in zip(
                [*sampled[:, 0], *old], [*vectors[0], *vectors[1]]
            )
        ],
        list(zip(texts.tolist(), vectors[2])),
    )
    after = {s['text'] for s in slots.slots}
    replaced += len(before - after)
    present += len(before & set(texts.tolist()))
    cache = updated(
        cache, (sampled, vectors[0][:, None]), (old, vectors[1]), vectors[2],
        tokens_of(texts), cache_cases.ids_of(texts),
    )
    assert_equal(cache, slots)
    assert len(after) == SIZE
  assert replaced > 100 and present > 100


def assert_oldest(rows, slots, devices):
  order = slots.by_age()[:5]
  padding = -(-5 // devices) * devices - len(order)
  assert rows.slots.tolist() == order + [SIZE] * padding
  assert rows.valid.tolist() == [True] * len(order) + [False] * padding
  for i, row in enumerate(order):
    entry = slots.slots[row]
    text = np.array(entry['text'])
    np.testing.assert_array_equal(rows.tokens[i], tokens_of(text))
    np.testing.assert_array_equal(rows.embeddings[i], entry['embedding'])
