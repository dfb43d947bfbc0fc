"""The commands of README and docs: their flags, gin files and macros exist."""

from collections.abc import Iterator
import importlib
import pathlib
import re
import shlex

import pytest

from dualenc_jax.commands import cli, config, quickstart
from dualenc_jax.errors import UserError

ROOT = pathlib.Path(__file__).parents[1]
PAGES = ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))
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
  assert found or page.name not in ('README.md', 'tutorial.md', 'running.md')
  for words in found:
    size = 2 if words[0] == 'data' else 1
    name = ' '.join(words[:size])
    flags = [word for word in words[size:] if word != '...']
    is_whole = len(flags) == len(words) - size
    assert name in cli.COMMANDS, words
    module = importlib.import_module(
        f'dualenc_jax.commands.{name.replace(" ", "_")}'
    )
    parser = module.make_parser()
    try:
      if parser.get_default('gin_search_paths') is None:
        parser.parse_args(flags)
        continue
      args = config.parse_args(parser, flags)
      known = {*config.shipped_files()}
      assert {*args.gin_file} <= known, words
      if is_whole and name in ('train', 'recipe') and args.gin_file:
        own = ['MODEL_DIR = "x"'] if name == 'train' else []
        config.load(args.gin_file, [*args.gin_bindings, *own], [])
    except UserError as e:
      raise AssertionError(f'dualenc {shlex.join(words)}: {e}') from e


def test_what_the_quickstart_says_to_do_next_can_be_done(tmp_path):
  page = tmp_path / 'next.md'
  text = quickstart.next_steps('a_model', 0.5).replace('=...', '=x')
  page.write_text(f'```\n{text}\n```')
  assert len(list(commands(page))) == 5
  test_commands_can_be_given(page)
