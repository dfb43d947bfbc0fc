"""python_code's reader on a small hand-written package and the real library."""

import collections
import textwrap

from reading import column

from dualenc_jax.data.dataset import example
from dualenc_jax.data.readers.python_code import PythonCode, split_of

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

    def short(self):
      """Too short."""
      return 1

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
SPLITS = ('train', 'validation', 'test')


def function(query='One two three.', result=1):
  return f'def f():\n  """{query}"""\n  return {result}\n'


def write(folder, path, source=function()):
  file = folder / path
  file.parent.mkdir(parents=True, exist_ok=True)
  file.write_text(textwrap.dedent(source).lstrip('\n'), 'utf-8')


def examples(folder, split='all'):
  return list(PythonCode([str(folder)]).examples(split))


def modules_by_split():
  names = collections.defaultdict(list)
  for number in range(200):
    names[split_of(f'm{number}')].append(f'm{number}.py')
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
  # Docstrings of what is nested do not stay in the parent.
  assert {e['name'].removeprefix('geo.shapes.'): e['passage']
          for e in others} == {
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


def test_files_that_do_not_parse_or_are_of_tests(tmp_path, caplog):
  for path in ('test/a.py', 'p/tests/b.py', 'p/_vendor/c.py', '.git/d.py',
               'p/__init__.py'):
    write(tmp_path, path)
  write(tmp_path, 'good.py', function(result=2))
  write(tmp_path, 'old.py', 'print "Python 2"\n')
  (tmp_path / 'latin.py').write_bytes(b'# \xe9\ndef f(): pass\n')
  (tmp_path / 'null.py').write_bytes(b'x = 1\0\n')
  assert column(examples(tmp_path), 'name') == ['good.f', 'p.f']
  assert 'skipped 3 files' in caplog.text and 'old.py' in caplog.text


def test_repeats_are_dropped_and_ids_stay_unique(tmp_path):
  write(tmp_path, 'one/a.py')
  write(tmp_path, 'one/b.py')
  write(tmp_path, 'two/a.py', function(result=2))
  roots = [str(tmp_path / 'one'), str(tmp_path / 'two')]
  found = list(PythonCode(roots).examples('all'))
  assert column(found, 'passage_id') == ['a.py:1:f', 'a.py:1:f~2']
  assert [e['passage'][-1] for e in found] == ['1', '2']


def test_a_held_out_passage_is_not_trained_on(tmp_path):
  modules = modules_by_split()
  for split, query in zip(SPLITS, 'ABC'):
    for module, result in zip(modules[split], ('0', repr(split))):
      write(tmp_path, module, function(f'{query} two three.', result))
  counts = [len(examples(tmp_path, split)) for split in SPLITS]
  assert counts == [1, 1, 2]
