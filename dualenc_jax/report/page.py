"""The whole page."""

from importlib import resources

import dualenc_jax
from dualenc_jax.report import (
  curves,
  environment,
  examples,
  figures,
  missing,
  overview,
  tables,
)
from dualenc_jax.report.markup import Html, join, tag
from dualenc_jax.report.material import Material
from dualenc_jax.results.folder import Model

# The page may show pictures that it holds, and nothing else: whatever a text
# in it says, a browser runs and loads nothing.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_SECTIONS = {
    'results': 'Results',
    'curves': 'Training',
    'space': 'Embedding space',
    'examples': 'Examples',
    'missing': 'Not there yet',
    'environment': 'Environment',
    'config': 'Config',
}


def render(material: Material) -> tuple[Html, list[str]]:
  """The page, the same for the same material, and what is damaged."""
  results = {e.result.key: e.result for e in material.evaluations}
  model = Model(material.name, material.command_path, results)
  pictures, lost = figures.render(material)
  problems = [*material.problems, *lost]
  sections = {
      'results': tables.render(material, model),
      'curves': curves.render(material.curves),
      'space': pictures,
      'examples': examples.render(material),
      'missing': missing.render(material),
      'environment': environment.render(material),
      'config': environment.config(material),
  }
  links = [
      tag('a', _SECTIONS[name], href=f'#{name}')
      for name, content in sections.items()
      if content
  ]
  style = resources.files(__package__).joinpath('style.css').read_text('utf-8')
  head = tag(
      'head',
      tag('meta', charset='utf-8'),
      tag('meta', http_equiv='Content-Security-Policy', content=_POLICY),
      tag(
          'meta', name='viewport', content='width=device-width, initial-scale=1'
      ),
      tag('meta', name='color-scheme', content='light dark'),
      tag('title', f'{material.name}: dualenc report'),
      tag('style', Html(style)),
  )
  body = tag(
      'body',
      overview.render(material, model),
      _problems(problems),
      tag('nav', *links, aria_label='Sections'),
      tag('main', *sections.values()),
      tag('footer', f'dualenc {dualenc_jax.__version__}'),
  )
  html = tag('html', head, '\n', body, lang='en')
  return join(Html('<!DOCTYPE html>\n'), html, '\n'), problems


def _problems(problems: list[str]) -> Html:
  if not problems:
    return Html('')
  return tag(
      'aside',
      tag('b', 'Some of this folder is damaged.'),
      tag('ul', *(tag('li', problem) for problem in problems)),
  )
