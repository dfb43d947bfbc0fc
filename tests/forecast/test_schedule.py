"""Scheduled programs as the TPU's compiler writes them, on small ones."""

import pathlib

import pytest

from dualenc_jax.forecast.parts import part_of
from dualenc_jax.forecast.schedule import Operation, Schedule, Transfer

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


@pytest.mark.parametrize(
    ('kind', 'hidden', 'seconds'),
    [
        ('all-gather', None, 1.0),
        ('reduce-scatter', 500, 0.5),
        ('all-gather', 3000, 0.0),
        # There and back; and one way, along one of two wires.
        ('all-reduce', None, 2.0),
        ('collective-permute', 500, 1.5),
    ],
)
def test_what_is_not_hidden_is_waited_for(kind, hidden, seconds):
  transfer = Transfer(kind, 2 * 10**6, 1, hidden, '')
  assert transfer.exposed(link=10**6, clock=1000) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ('kind', 'place', 'part'),
    [
        ('fusion', 'jit(s)/jvp(D.encode_query)/D._encode/encoder/layers_0/'
         'attention/bqhk,bshk->bhqs/dot_general', 'attention'),
        ('fusion', 'jit(s)/transpose(jvp(D.encode_query))/D._encode/encoder/'
         'layers_0/attention/query/dot_general',
         'products of queries, keys, values, outputs'),
        ('fusion', 'jit(s)/jvp(D.x)/encoder/layers_1/mlp/Dropout_0/ge',
         'dropout'),
        ('fusion', 'jit(s)/pow', 'optimizer, metrics'),
        ('fusion', '', 'unknown'),
        ('copy', 'jit(s)/jvp(D.x)/encoder/layers_1/mlp/wo/dot', 'copies'),
    ],
)
def test_parts(kind, place, part):
  rest = f'%x), metadata={{op_name="{place}"}}' if place else '%x)'
  assert part_of(Operation('x', kind, 'f32[8]', rest)) == part
