"""The whole page."""

from importlib import resources

import dualenc_jax
from dualenc_jax.report import (
  beside as beside_lib,
  card,
  curves,
  environment,
  examples,
  missing,
  overview,
  pictures,
  tables,
)
from dualenc_jax.report.beside import Beside
from dualenc_jax.report.contents import Contents
from dualenc_jax.report.markup import Html, join, tag
from dualenc_jax.results.folder import Model

# The page may show pictures that it holds, and nothing else: whatever a text
# in it says, a browser runs and loads nothing.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"

_LINKS = {'#card': 'Data and use'}


def render(contents: Contents, beside: Beside) -> tuple[Html, list[str]]:
  """The page, the same for the same contents, and what is damaged."""
  results = {e.result.key: e.result for e in contents.evaluations}
  model = Model(contents.name, contents.command_path, results)
  space, lost = pictures.render(contents)
  problems = [*contents.problems, *lost]
  sections = {
      '#results': tables.render(contents, model),
      '#comparison': beside_lib.render(beside),
      '#curves': curves.render(contents.curves, beside.name, beside.runs),
      '#space': space,
      '#examples': examples.render(contents),
      '#card': card.render(contents),
      '#missing': missing.render(contents),
      '#environment': environment.render(contents),
      '#config': environment.config(contents),
  }
  links = [
      tag('a', _LINKS.get(name, name[1:].capitalize()), href=name)
      for name, content in sections.items()
      if content
  ]
  damage = tag(
      'aside',
      tag('b', 'Some of this folder is damaged.'),
      tag('ul', *(tag('li', problem) for problem in problems)),
  )
  style = resources.files(__package__).joinpath('style.css').read_text('utf-8')
  head = tag(
      'head',
      tag('meta', charset='utf-8'),
      tag('meta', http_equiv='Content-Security-Policy', content=_POLICY),
      tag('meta', name='viewport', content='width=device-width'),
      tag('meta', name='color-scheme', content='light dark'),
      tag('title', f'{contents.name}: dualenc report'),
      tag('style', Html(style)),
  )
  body = tag(
      'body',
      overview.render(contents, model),
      *([damage] if problems else []),
      tag('nav', *links, aria_label='Sections'),
      tag('main', *sections.values()),
      tag('footer', f'dualenc {dualenc_jax.__version__}'),
  )
  html = tag('html', head, '\n', body, lang='en')
  return join(Html('<!DOCTYPE html>\n'), html, '\n'), problems
