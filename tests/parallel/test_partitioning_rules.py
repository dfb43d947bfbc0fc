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


def test_paths_are_joined_by_slashes_in_leaf_order():
  assert partitioning.leaf_paths(PARAMS) == PATHS


def test_a_rule_matches_the_whole_path():
  found = partitioning.match('R', [('projection/kernel', 1)], PATHS)
  assert found == {PATHS[3]: 1}
  for part in ('kernel', 'projection', 'projection/kerne', 'rojection/kernel'):
    with pytest.raises(UserError, match='must match the whole path'):
      partitioning.match('R', [(part, 1)], PATHS)


def test_the_first_rule_that_matches_counts():
  given = [(r'.*/layers_0/.*', 'a'), (r'.*kernel', 'b')]
  assert partitioning.match('R', given, PATHS) == {
      PATHS[0]: 'a',
      PATHS[1]: 'a',
      PATHS[2]: 'b',
      PATHS[3]: 'b',
  }


@pytest.mark.parametrize('value', ['b', 'c'])
@pytest.mark.parametrize('late', ['.*', '.*kernel', 'projection/.*'])
def test_a_rule_that_comes_too_late_is_an_error(value, late):
  given = [(r'.*norm.*', 'a'), (r'.*kernel', 'b'), (late, value)]
  with pytest.raises(UserError, match=r"' has no effect: earlier rules match"):
    partitioning.match('R', given, PATHS)


def test_paths_without_a_rule_are_left_out():
  assert partitioning.match('R', [], PATHS) == {}
  assert set(partitioning.match('R', [('.*scale', 1)], PATHS)) == {PATHS[1]}


def test_a_rule_without_a_parameter_is_an_error_with_the_nearest_paths():
  with pytest.raises(UserError) as error:
    partitioning.match('FREEZE', [('.*', 1), ('projektion/kernel', 1)], PATHS)
  message = str(error.value)
  assert "FREEZE: the rule 'projektion/kernel' matches no" in message
  assert 'such as: projection/kernel' in message


def test_an_expression_that_does_not_compile_is_an_error():
  with pytest.raises(UserError, match=r"FREEZE: '\*\.kernel' is no regular"):
    partitioning.match('FREEZE', [('*.kernel', 1)], PATHS)
