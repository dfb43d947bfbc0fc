"""Types of JSON's values."""

import re

import pytest

from dualenc_jax.errors import UserError
from dualenc_jax.io import shapes

SHAPE = {
    'name': str | None,
    'hits': [{'rank': int, 'score': int | float}],
    'by_model': {str: {str: float}},
    'more?': bool,
}
GOOD = {
    'name': None,
    'hits': [{'rank': 1, 'score': 0.5, 'other': []}],
    'by_model': {'a': {'x': 0.5}},
}


@pytest.mark.parametrize('changes', [{}, {'more': True}, {'hits': []}])
def test_what_has_the_shape_is_accepted(changes):
  shapes.check({**GOOD, **changes}, SHAPE, 'x.json')


@pytest.mark.parametrize(
    'changes, message',
    [
        ({'name': 3}, 'x.json: name is 3; expected str or NoneType'),
        ({'hits': {}}, 'hits is {}; expected list'),
        ({'hits': [{'rank': 1}]}, "hits lacks 'score'"),
        ({'hits': [{'rank': True, 'score': 1}]}, 'rank is True; expected int'),
        ({'hits': [{'rank': 10**30, 'score': 1}]}, 'rank has 31 digits'),
        ({'by_model': {'a': {'x': '1'}}}, "by_model: a: x is '1'"),
        ({'more': 1}, 'more is 1; expected bool'),
    ],
)
def test_what_has_not_is_named(changes, message):
  with pytest.raises(UserError, match=re.escape(message)) as error:
    shapes.check({**GOOD, **changes}, SHAPE, 'x.json', 'Write it again.')
  assert str(error.value).endswith(' Write it again.')
