"""python_code's reader on a small hand-written package and the real library."""

import ast
import collections
import textwrap

import pytest
from reading import column, refused

from dualenc_jax.data.dataset import example
from dualenc_jax.readers.python_code import PythonCode, split_of

SHAPES = '''
  """Module docstring, not a query."""
  import functools


  class Shape:
    """A class docstring, not a query."""

    @property
    @functools.cache
    def area(self):
      """Return the area
      of  the shape.

      A second paragraph.
      """

      text = """kept
  as it is"""
      return self.width * self.height  # in units

    async def draw(self, canvas):
      """Draw the shape slowly."""
      await canvas.draw(self)

    def __len__(self): """Count the corners here."""; return 4

    def abstract(self):
      """Nothing follows this docstring."""

    def only_pass(self):
      """Only pass follows this."""
      pass

    def only_dots(self):
      """Only dots follow this one."""
      ...

    def short(self):
      """Too short."""
      return 1

    def bare(self):
      return 2

    def doctested(self):
      """>>> doctested() is no description
      1
      """
      return 1


  def outer(x):
    """Wrap a number in a function."""
    def inner():
      """Return the wrapped number."""
      return x  # naïve 中
    class Local:
      """A local class docstring."""
      def method(self):
        """Return twice the number."""
        return x * 2
    return inner
'''


def write(folder, path, source):
  file = folder / path
  file.parent.mkdir(parents=True, exist_ok=True)
  file.write_text(textwrap.dedent(source).lstrip('\n'), 'utf-8')


def examples(folder, split='all'):
  return list(PythonCode([str(folder)]).examples(split))


def names_by_split():
  names = collections.defaultdict(list)
  for number in range(200):
    names[split_of(f'm{number}')].append(f'm{number}')
  return names


def test_functions_with_docstrings_and_nothing_else(tmp_path):
  write(tmp_path, 'geo/shapes.py', SHAPES)
  area, *others = examples(tmp_path)
  assert area == example(
      'Return the area of the shape.',
      '@property\n@functools.cache\ndef area(self):\n'
      '  text = """kept\nas it is"""\n'
      '  return self.width * self.height  # in units',
      query_id='geo/shapes.py:10:Shape.area#query',
      passage_id='geo/shapes.py:10:Shape.area',
      name='geo.shapes.Shape.area',
      location='geo/shapes.py:10',
  )
  passages = {e['name'].removeprefix('geo.shapes.'): e['passage']
              for e in others}
  # Docstrings of what is nested do not stay in the parent.
  assert passages == {
      'Shape.draw': 'async def draw(self, canvas):\n  await canvas.draw(self)',
      'Shape.__len__': 'def __len__(self): return 4',
      'outer': (
          'def outer(x):\n  def inner():\n    return x  # naïve 中\n'
          '  class Local:\n    def method(self):\n      return x * 2\n'
          '  return inner'
      ),
      'outer.inner': 'def inner():\n  return x  # naïve 中',
      'outer.Local.method': 'def method(self):\n  return x * 2',
  }
  assert others[3]['query'] == 'Return the wrapped number.'


def test_files_that_do_not_parse_are_counted(tmp_path, caplog):
  write(tmp_path, 'good.py', 'def f():\n  """One two three."""\n  return 1\n')
  write(tmp_path, 'old.py', 'print "Python 2"\n')
  (tmp_path / 'latin.py').write_bytes(b'# \xe9\ndef f(): pass\n')
  (tmp_path / 'null.py').write_bytes(b'x = 1\0\n')
  assert column(examples(tmp_path), 'name') == ['good.f']
  assert 'skipped 3 files' in caplog.text and 'old.py' in caplog.text


def test_declared_encodings_and_line_ends_are_read(tmp_path):
  source = '# coding: latin-1\r\ndef f():\r\n  """Über three words."""\r\n'
  (tmp_path / 'a.py').write_bytes(
      (source + '  return "é" \x0c\r\n').encode('latin-1')
  )
  (found,) = examples(tmp_path)
  assert found['query'] == 'Über three words.'
  assert found['passage'] == 'def f():\n  return "é"'


def test_tests_vendored_copies_and_hidden_folders_are_left_out(tmp_path):
  source = 'def f():\n  """One two three."""\n  return 1\n'
  for path in ('test/a.py', 'p/tests/b.py', 'p/_vendor/c.py', '.git/d.py'):
    write(tmp_path, path, source)
  write(tmp_path, 'p/__init__.py', source)
  assert column(examples(tmp_path), 'name') == ['p.f']


def test_repeats_are_dropped_and_ids_stay_unique(tmp_path):
  source = 'def f():\n  """One two three."""\n  return 1\n'
  write(tmp_path, 'one/a.py', source)
  write(tmp_path, 'one/b.py', source)
  write(tmp_path, 'two/a.py', source.replace('1', '2'))
  roots = [str(tmp_path / 'one'), str(tmp_path / 'two')]
  found = list(PythonCode(roots).examples('all'))
  assert column(found, 'passage_id') == ['a.py:1:f', 'a.py:1:f~2']
  assert [e['passage'][-1] for e in found] == ['1', '2']


def test_a_held_out_passage_is_not_trained_on(tmp_path):
  names = names_by_split()
  for split, query in (('train', 'A'), ('validation', 'B'), ('test', 'C')):
    first, second = names[split][:2]
    source = f'def f():\n  """{query} two three."""\n  return %s\n'
    write(tmp_path, f'{first}.py', source % '0')
    write(tmp_path, f'{second}.py', source % repr(split))
  passages = {
      split: sorted(e['passage'][-8:] for e in examples(tmp_path, split))
      for split in ('train', 'validation', 'test')
  }
  assert [*map(len, passages.values())] == [1, 1, 2]


def test_what_is_nearly_held_out_is_not_trained_on(tmp_path, caplog):
  names = names_by_split()
  body = ''.join(f'  if x == {i}:\n    return names_{i}\n' for i in range(9))
  held_out = f'def f(x):\n  """One two three."""\n{body}'
  write(tmp_path, f'{names["test"][0]}.py', held_out)
  copies = {
      'copy': f'def g(x):\n  """Four five six."""\n{body}',
      'docstring': 'def h():\n  """One two three."""\n  return None\n',
      'other': f'def i():\n  """Seven eight nine."""\n{body[:90]}',
  }
  for module, source in zip(names['train'], copies.values()):
    write(tmp_path, f'{module}.py', source)
  caplog.set_level('INFO')
  found = examples(tmp_path, 'train')
  assert column(found, 'query') == ['Seven eight nine.']
  assert '2 functions of train are left out' in caplog.text


def test_fingerprint_follows_the_files(tmp_path):
  write(tmp_path, 'a.py', 'x = 1\n')
  reader = PythonCode([str(tmp_path)])
  first = reader.fingerprint('train')
  assert first == reader.fingerprint('test')
  write(tmp_path, 'a.py', 'x = 10\n')
  second = reader.fingerprint('train')
  write(tmp_path, 'b.py', '')
  assert len({first, second, reader.fingerprint('train')}) == 3


def test_bad_roots_and_splits(tmp_path):
  absent = PythonCode([str(tmp_path / 'absent')])
  refused(lambda: absent.fingerprint('train'), 'absent is not a folder')
  refused(lambda: examples(tmp_path, 'trian'), "Did you mean 'train'")


@pytest.fixture(scope='module')
def stdlib():
  reader = PythonCode()
  return {split: list(reader.examples(split)) for split in reader.splits()}


def test_standard_library_splits_are_pure(stdlib):
  splits = ('train', 'validation', 'test')
  for name in ('passage', 'passage_id'):
    values = [{e[name] for e in stdlib[split]} for split in splits]
    assert sum(map(len, values)) == len(set.union(*values))
  modules = [
      {e['passage_id'].split('/')[0].split(':')[0] for e in stdlib[split]}
      for split in splits
  ]
  assert sum(map(len, modules)) == len(set.union(*modules))
  sizes = {split: len(rows) for split, rows in stdlib.items()}
  assert sizes['train'] > 3000
  assert 300 <= sizes['validation'] <= 1000
  assert 300 <= sizes['test'] <= 1000


def test_standard_library_examples_are_sound(stdlib):
  ids = column(stdlib['all'], 'passage_id')
  assert len(ids) == len(set(ids))
  for row in stdlib['all']:
    assert len(row['query'].split()) >= 3
    assert not row['location'].startswith('/')
    # Still Python, and a function, and without its docstring.
    (function,) = ast.parse(row['passage']).body
    assert ast.get_docstring(function) is None
    assert function.name == row['name'].split('.')[-1]


def test_order_is_by_root_path_and_line(tmp_path):
  source = '''
    def late_in_the_alphabet():
      """The function of %s."""
      return 1
    def early():
      """The second of %s."""
      return 2
  '''
  for path in ('z.py', 'b/c.py', 'b.py', 'a/z.py'):
    write(tmp_path, path, source.replace('%s', path))
  assert column(examples(tmp_path), 'passage_id') == [
      f'{path}:{line}'
      for path in ('a/z.py', 'b.py', 'b/c.py', 'z.py')
      for line in ('1:late_in_the_alphabet', '4:early')
  ]
