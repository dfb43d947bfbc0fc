"""Scheduled programs as the TPU's compiler writes them, on small ones."""

import pathlib

from dualenc_jax.forecast.schedule import Schedule

PROGRAM = (
    pathlib.Path(__file__).parents[1] / 'data/scheduled.hlo'
).read_text()


def test_loops_count_and_of_branches_the_longest():
  schedule = Schedule(PROGRAM)
  # From 1 to 5: four turns of 100.
  assert schedule.cycles() == 4 * 100 + 40 + 30
  runs = {operation.name: times for operation, times in schedule.operations()}
  assert runs['product.1'] == 4
  assert 'few.1' not in runs
  # What a fusion does is not counted again.
  assert 'exp.1' not in runs
  # A line that is three.
  assert runs['own.2'] == 1


def test_what_is_sent_and_what_runs_beside_it():
  found = {
      each.kind: (each.bytes, each.times, each.hidden)
      for each in Schedule(PROGRAM).transfers()
  }
  assert found == {
      'collective-permute': (32, 4, 100),
      'all-reduce': (32, 1, None),
      # Within fusions: one that starts, goes on beside a product and ends; and
      # one whose sum each device keeps a part of.
      'all-gather': (64, 1, 40),
      'reduce-scatter': (128, 1, None),
  }
