"""JSON that is not what it should be."""

import re

import pytest

from dualenc_jax.utils import json_file
from dualenc_jax.utils.errors import UserError


@pytest.mark.parametrize(('content', 'message'), [
    (b'{"a": 1,\n "b": }', 'is not JSON: .*line 2 column 7'),
    (b'[' * 100_000, 'is not JSON: '),
    (b'[1]', 'not a JSON object: it holds a list'),
    (b'{"b": {"a": 1, "a": 2}}', "is not JSON: an object has the key 'a'"),
    (b'\xff', 'not text in UTF-8'),
    (b'{"b": 1}', "lacks 'a'"),
    (b'{"a": "1"}', "a is '1'; expected a whole number or null"),
    (b'{"a": 100000000000000000000}', 'a has 21 digits'),
])
def test_damage_is_named(tmp_path, content, message):
  path = tmp_path / 'x.json'
  path.write_bytes(content)
  with pytest.raises(UserError, match=f'x.json.*{message}.*Do this'):
    json_file.read(path, 'Do this.', a=int | None)


def test_depth_and_length_are_bounded_and_a_file_is_there(tmp_path):
  path = tmp_path / 'x.json'
  path.write_text('{"a": ' + '[' * 63 + ']' * 63 + '}')
  assert json_file.read(path).keys() == {'a'}
  path.write_text('{"a": ' + '[' * 64 + ']' * 64 + '}')
  with pytest.raises(UserError, match='x.json is not JSON: values are nested'):
    json_file.read(path)
  with path.open('wb') as file:
    file.truncate(2**26 + 1)
  with pytest.raises(UserError, match='x.json has 67,108,865 bytes'):
    json_file.read(path)
  path.unlink()
  with pytest.raises(UserError, match='x.json cannot be read: .*Do that'):
    json_file.read(path, 'Do this.', 'Do that.')


def test_lines_are_numbered(tmp_path):
  path = tmp_path / 'x.jsonl'
  path.write_text('{"a": "\u2028"}\n[]\n')
  lines = json_file.read_lines(path)
  assert next(lines) == (f'{path}, line 1', {'a': '\u2028'})
  with pytest.raises(UserError, match='x.jsonl, line 2 is not a JSON object'):
    next(lines)


def test_another_format_or_version():
  json_file.check_format({'format': 'f', 'version': 2}, 'x', 'f', 2, '')
  with pytest.raises(UserError, match="x is of another format than 'f'"):
    json_file.check_format({'version': 2}, 'x', 'f', 2, '')
  with pytest.raises(UserError, match='x has format version 1; .*version 2'):
    json_file.check_format({'format': 'f', 'version': 1}, 'x', 'f', 2, '')


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


@pytest.mark.parametrize('changes, message', [
    ({'name': 3}, 'x.json: name is 3; expected a string or null'),
    ({'hits': [{'rank': 1}]}, "hits lacks 'score'"),
    ({'hits': [{'rank': True, 'score': 1}]}, 'rank is True; expected a whole'),
    ({'by_model': {'a': {'x': '1'}}}, "by_model: a: x is '1'; expected a num"),
    ({'more': 1}, 'more is 1; expected a boolean'),
])
def test_what_has_not_the_shape_is_named(changes, message):
  for right in ({}, {'more': True}, {'hits': []}):
    json_file.check({**GOOD, **right}, SHAPE, 'x.json')
  with pytest.raises(UserError, match=re.escape(message)) as error:
    json_file.check({**GOOD, **changes}, SHAPE, 'x.json', 'Write it again.')
  assert str(error.value).endswith(' Write it again.')
