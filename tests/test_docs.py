"""Commands, flags, gin files, macros, scripts, links in pages exist."""

from collections.abc import Iterator
import importlib
import pathlib
import re
import shlex

import pytest

from dualenc_jax.cli import config, main as cli, quickstart
from dualenc_jax.utils.errors import UserError

ROOT = pathlib.Path(__file__).parents[1]
PAGES = ROOT / 'README.md', *sorted(ROOT.glob('[bd]*s/*.md'))
# What a shell puts in their place.
OPEN = re.compile(r'\$\(.*?\)|\$\w+')


def blocks(page: pathlib.Path) -> list[tuple[str, str]]:
  """Language, or nothing, and text of each fenced block of a page."""
  return re.findall(r'```(\w*)\n(.*?)```', page.read_text(), re.DOTALL)


def commands(page: pathlib.Path) -> Iterator[list[str]]:
  """The words behind `dualenc` of each command in the blocks of a page."""
  for _, block in blocks(page):
    for line in block.replace('\\\n', ' ').splitlines():
      if found := re.search(r'(?:^|[ "/])dualenc ((?!-)[a-z].*)', line):
        text = re.split(r'; |\|\|', OPEN.sub('1', found[1]))[0]
        if text.count('"') % 2:  # The block quotes the whole.
          text = text.rstrip('"]')
        yield shlex.split(text, comments=True)


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_commands_can_be_given(page):
  found = list(commands(page))
  assert found or page.name not in ('RESULTS.md', 'tutorial.md', 'running.md')
  for words in found:
    size = 2 if words[0] == 'data' else 1
    name = ' '.join(words[:size])
    flags = [word for word in words[size:] if word != '...']
    is_whole = len(flags) == len(words) - size
    assert name in cli.COMMANDS, words
    module = importlib.import_module(
        f'dualenc_jax.cli.{name.replace(" ", "_")}'
    )
    parser = module.make_parser()
    try:
      if parser.get_default('gin_search_paths') is None:
        parser.parse_args(flags)
        continue
      args = config.parse_args(parser, flags)
      known = {*config.shipped_files()}
      folders = {file.partition('/')[0] for file in known}
      ours = [f for f in args.gin_file if f.partition('/')[0] in folders]
      assert {*ours} <= known, words
      is_whole &= bool(ours) and ours == args.gin_file
      if is_whole and name in ('train', 'recipe'):
        is_recipe = name == 'recipe'
        own = [] if is_recipe else ['MODEL_DIR = "x"']
        bindings = [*args.gin_bindings, *own]
        config.load(args.gin_file, bindings, [], is_recipe)
    except UserError as e:
      raise AssertionError(f'dualenc {shlex.join(words)}: {e}') from e


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_what_sentences_and_scripts_name_exists(page):
  text = page.read_text().replace('\\\n', ' ')
  for words in re.findall(r'`dualenc ((?!-)[a-z][^`]*)`', text):
    words = ' '.join(words.split())
    name = re.match(r'(data )?\w+', words)[0]
    assert name in cli.COMMANDS, words
    module = importlib.import_module(cli.module_name(name))
    known = module.make_parser().format_help()
    for flag in re.findall(r'--(?!gin\.)\w+', words):
      assert flag in known, words
  scripts = ''.join(path.read_text() for path in ROOT.glob('benchmarks/*.py'))
  for name in re.findall(r'\b(?:benchmarks|tests)/[\w/]+\.py', text):
    assert (ROOT / name).is_file(), name
  for line in re.findall(r'python benchmarks/.*', text):
    for flag in re.findall(r' (--\w+)', line.partition('`')[0]):
      assert f"'{flag}'" in scripts, line


def test_tables_of_the_papers_name_what_exists():
  """Gin files, commands, flags, macros and other names in cells; and all files
  of settings and recipes are there."""
  text = (ROOT / 'docs/papers.md').read_text()
  cells = re.findall(r'`([^`\n]+)`', re.sub(r'```.*?```', '', text, flags=re.S))
  shipped = config.shipped_files()
  sources = *config.gin_root().rglob('*.gin'), *ROOT.glob('*_jax/**/*.py')
  known = '\n'.join(path.read_text() for path in sources)
  for cell in cells:
    for file in re.findall(r'[\w/]+\.gin\b', cell):
      assert any(f'/{name}'.endswith(f'/{file}') for name in shipped), cell
    is_script = cell.startswith('python ')
    for flag in re.findall(r'--(?!gin\.)(\w+)', cell):
      assert is_script or f"'--{flag}'" in known, cell
    for macro in re.findall(r'\b[A-Z]+_[A-Z_]+\b|^[A-Z][A-Z0-9]+$', cell):
      assert re.search(f'^{macro} = ', known, re.M), cell
    if re.fullmatch(r'[a-z_]+[a-z0-9]', cell):
      assert re.search(rf'\b{cell}\b', known), cell
  for name in shipped:
    if name.startswith(('runs/papers/', 'recipes/')):
      assert re.search(rf'\b{name.rpartition("/")[2]}', text), name


def test_recipes_of_the_papers_can_be_listed(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  for name in ('my_model/config.gin', 'my_model/vocabulary.model'):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('')
  for name in ('generator', 'cross_encoder'):
    (tmp_path / name).write_text('')
  found = [c for c in commands(ROOT / 'docs/papers.md') if c[0] == 'recipe']
  assert len(found) > 3
  needed = 'VALIDATION_FILE', 'UNLABELLED', 'VOCABULARY'
  for words in found:
    if '...' in words:
      words.remove('...')
      words += [f'--gin.{name}=x' for name in needed]
    assert cli.main([*words, '--list']) == 0, capsys.readouterr().err


def test_what_the_quickstart_says_to_do_next_can_be_done(tmp_path):
  page = tmp_path / 'next.md'
  text = quickstart.next_steps('a_model', 0.5).replace('=...', '=x')
  page.write_text(f'```\n{text}\n```')
  assert len(list(commands(page))) == 5
  test_commands_can_be_given(page)


def test_the_table_of_macros_is_that_of_the_file():
  text = (config.gin_root() / 'runs/base.gin').read_text()
  macros = dict(re.findall(r'^([A-Z_]+) = (.*)$', text, re.MULTILINE))
  page = (ROOT / 'docs/configuration.md').read_text()
  rows = re.findall(r'^\| `([A-Z_]+)` \| (.*?) \|', page, re.MULTILINE)
  defaults = {name: f'`{value}`' for name, value in macros.items()}
  required = dict.fromkeys(('MODEL_DIR', 'VOCABULARY'), 'required')
  assert defaults | required == dict(rows)


def test_commands_have_the_flags_of_the_table():
  page = (ROOT / 'docs/configuration.md').read_text().split('## Flags of')[1]
  rows = re.findall(r'^\| (`--.*?) \| .* \| (.*?) \|$', page, re.MULTILINE)
  assert len(rows) > 10
  for flags, commands in rows:
    named = set(re.findall('`([a-z][a-z ]*)`', commands)) & {*cli.COMMANDS}
    modules = (importlib.import_module(cli.module_name(n)) for n in named)
    helps = [module.make_parser().format_help() for module in modules]
    flags = re.findall('--[a-z0-9_]+', flags)
    # A row may have flags of some of its commands only.
    assert all(any(f in text for f in flags) for text in helps), flags
    assert not helps or all(any(f in text for text in helps) for f in flags)


def anchors(page: pathlib.Path) -> set[str]:
  """The anchors of a page's headings, as GitHub makes them."""
  text = re.sub(r'```.*?```', '', page.read_text(), flags=re.DOTALL)
  heads = re.findall(r'^#+ (.*)$', text, re.MULTILINE)
  words = (re.sub(r'[^\w\- ]', '', head.lower()) for head in heads)
  return {text.replace(' ', '-') for text in words}


@pytest.mark.parametrize(
    'page', [*PAGES, ROOT / 'CONTRIBUTING.md'], ids=lambda page: page.name
)
def test_links_lead_somewhere(page):
  text = re.sub(r'```.*?```', '', page.read_text(), flags=re.DOTALL)
  for link in re.findall(r'\]\(([^)\s]+)\)', text):
    file, _, anchor = link.partition('#')
    if '://' in link:
      continue
    target = (page.parent / file).resolve() if file else page
    assert target.exists(), link
    if anchor:
      assert anchor in anchors(target), link


def test_the_index_has_all_pages():
  index = (ROOT / 'docs/README.md').read_text()
  site = (ROOT / 'mkdocs.yml').read_text()
  for page in ROOT.glob('docs/*.md'):
    if page.name != 'README.md':
      assert f'({page.name})' in index
      assert f'- {page.name}' in site
