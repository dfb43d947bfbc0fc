"""Scheduled programs as the TPU's compiler writes them, on small ones."""

import pathlib

import pytest

from dualenc_jax.forecast.parts import part_of
from dualenc_jax.forecast.schedule import Operation, Schedule

PROGRAM = (
    pathlib.Path(__file__).parents[1] / 'data/scheduled.hlo'
).read_text()


def test_loops_count_and_of_branches_the_longest():
  schedule = Schedule(PROGRAM)
  # From 1 to 5: four turns of 100.
  assert schedule.cycles() == 4 * 100 + 30
  runs = {operation.name: times for operation, times in schedule.operations()}
  assert runs['product.1'] == 4
  assert 'few.1' not in runs
  # What a fusion does is not counted again.
  assert 'exp.1' not in runs


def test_what_is_sent_and_what_runs_beside_it():
  permute, reduce = Schedule(PROGRAM).transfers()[::-1]
  if permute.kind != 'collective-permute':
    permute, reduce = reduce, permute
  assert (permute.kind, permute.bytes, permute.times, permute.hidden) == (
      'collective-permute', 32, 4, 100
  )
  assert (reduce.kind, reduce.bytes, reduce.times, reduce.hidden) == (
      'all-reduce', 32, 1, None
  )


def test_a_loop_that_starts_anywhere_counts_half():
  text = PROGRAM.replace('s32[]{:T(128)} constant(1)', 's32[] parameter(2)')
  assert Schedule(text).cycles() == 2.5 * 100 + 30


@pytest.mark.parametrize(
    ('kind', 'place', 'part'),
    [
        ('fusion', 'jit(s)/jvp(D.encode_query)/D._encode/encoder/layers_0/'
         'attention/bqhk,bshk->bhqs/dot_general', 'attention'),
        ('fusion', 'jit(s)/transpose(jvp(D.encode_query))/D._encode/encoder/'
         'layers_0/attention/query/dot_general',
         'products of queries, keys, values, outputs'),
        ('fusion', 'jit(s)/jvp(D.encode_query)/D._encode/encoder/relpos_bias/x',
         'attention'),
        ('fusion', 'jit(s)/jvp(D.x)/encoder/layers_1/mlp/wo/dot', 'MLP'),
        ('fusion', 'jit(s)/jvp(D.x)/encoder/layers_1/mlp/Dropout_0/ge',
         'dropout'),
        ('fusion', 'jit(s)/jvp(D.x)/encoder/layers_1/pre_mlp_layer_norm/mul',
         'norms'),
        ('fusion', 'jit(s)/jvp(D.x)/projection/dot', 'projection, pooling'),
        ('fusion', 'jit(s)/jvp()/reduce_sum', 'loss'),
        ('fusion', 'jit(s)/pow', 'optimizer, metrics'),
        ('fusion', '', 'unknown'),
        ('copy', 'jit(s)/jvp(D.x)/encoder/layers_1/mlp/wo/dot', 'copies'),
    ],
)
def test_parts(kind, place, part):
  rest = f'%x), metadata={{op_name="{place}"}}' if place else '%x)'
  assert part_of(Operation('x', kind, 'f32[8]', rest)) == part
