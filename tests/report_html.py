"""The page of `dualenc report`, made and read."""

from html.parser import HTMLParser
import pathlib

from dualenc_jax.commands import report

# HTML's own elements without an end tag.
VOID = {'br', 'hr', 'img', 'input', 'link', 'meta'}


class Page(HTMLParser):
  """A page whose tags are checked to be balanced; its texts and links."""

  def __init__(self, html):
    super().__init__()
    self.open, self.tags, self.words = [], [], {}
    self.within_word = False
    self.feed(html)
    self.close()
    assert self.open == []

  def handle_startendtag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))
    self.within_word = tag == 'wbr'

  def handle_starttag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))
    if tag not in VOID:
      self.open.append((tag, dict(attrs).get('id')))

  def handle_endtag(self, tag):
    assert self.open and self.open.pop()[0] == tag, (tag, self.open)

  def handle_data(self, data):
    inside = [i for tag, i in self.open if tag == 'section'] or ['top']
    if all(tag != 'style' for tag, _ in self.open):
      words = self.words.setdefault(inside[0], [])
      words.append((words.pop() if self.within_word else '') + data)
    self.within_word = False

  def text(self, section):
    return ' '.join(' '.join(self.words.get(section, [])).split())

  def attributes(self, name):
    return [a[name] for _, a in self.tags if name in a]


def render(folder: pathlib.Path, *flags: str) -> Page:
  """The page of a model_dir."""
  report.main([str(folder), *flags])
  return Page((folder / 'report.html').read_text('utf-8'))
