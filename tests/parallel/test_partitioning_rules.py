"""Regular-expression rules over parameter paths."""

import pytest

from dualenc_jax.errors import UserError
from dualenc_jax.parallel import partitioning

PARAMS = {
    'encoder': {
        'layers_0': {'mlp': {'wo': {'kernel': 1}}, 'norm': {'scale': 2}},
        'layers_10': {'mlp': {'wo': {'kernel': 3}}},
    },
    'projection': {'kernel': 4},
}
PATHS = [
    'encoder/layers_0/mlp/wo/kernel', 'encoder/layers_0/norm/scale',
    'encoder/layers_10/mlp/wo/kernel', 'projection/kernel',
]


def test_a_rule_matches_the_whole_path():
  assert partitioning.leaf_paths(PARAMS) == PATHS
  found = partitioning.match('R', [('projection/kernel', 1)], PATHS)
  assert found == {PATHS[3]: 1}
  for part in ('kernel', 'projection', 'projection/kerne', 'rojection/kernel'):
    with pytest.raises(UserError, match='must match the whole path'):
      partitioning.match('R', [(part, 1)], PATHS)


def test_the_first_rule_that_matches_counts():
  given = [(r'.*/layers_0/.*', 'a'), (r'.*kernel', 'b')]
  found = partitioning.match('R', given, PATHS)
  assert found == dict(zip(PATHS, 'aabb'))
  # Paths without a rule are left out.
  assert partitioning.match('R', [], PATHS) == {}
  assert set(partitioning.match('R', [('.*scale', 1)], PATHS)) == {PATHS[1]}


@pytest.mark.parametrize(
    'late, value', [('.*', 'b'), ('.*kernel', 'c'), ('projection/.*', 'b')]
)
def test_a_rule_that_comes_too_late_is_an_error(late, value):
  given = [(r'.*norm.*', 'a'), (r'.*kernel', 'b'), (late, value)]
  with pytest.raises(UserError, match=r"' has no effect: earlier rules match"):
    partitioning.match('R', given, PATHS)


@pytest.mark.parametrize(
    'rule, message',
    [
        ('projektion/kernel', "'projektion/kernel' .* as: projection/kernel"),
        ('*.kernel', r"'\*\.kernel' is no regular"),
    ],
)
def test_a_rule_that_matches_nothing_is_an_error(rule, message):
  with pytest.raises(UserError, match=f'FREEZE: .*{message}'):
    partitioning.match('FREEZE', [('.*', 1), (rule, 1)], PATHS)
