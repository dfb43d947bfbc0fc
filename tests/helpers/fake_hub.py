"""A hub on this machine, with what huggingface_hub asks of the real one."""

import contextlib
import hashlib
import http.server
import json
import re
import threading
import urllib.parse

from huggingface_hub import constants

from dualenc_jax.utils import hub as hub_lib

_SHA = '0123456789abcdef' * 2 + '01234567'


class Hub:
  """Repositories, by 'models/org/name' and 'datasets/org/name'.

  Attributes:
    files: bytes by name, by repository.
    status: what is answered in place of the right thing, by repository.
    url: of the server.
  """

  def __init__(self):
    self.files, self.status, self.url = {}, {}, ''


@contextlib.contextmanager
def running(monkeypatch, cache):
  """Yields a `Hub` that huggingface_hub asks, with an empty cache."""
  hub = Hub()

  class Handler(http.server.BaseHTTPRequestHandler):

    def log_message(self, *unused):
      pass

    def answer(self, content, status=200, **headers):
      body = content
      if not isinstance(content, bytes):
        body = json.dumps(content).encode()
      self.send_response(status)
      self.send_header('Content-Length', str(len(body)))
      for name, value in headers.items():
        self.send_header(name.replace('_', '-'), value)
      self.end_headers()
      if self.command != 'HEAD':
        self.wfile.write(body)

    def repo(self, repo):
      """Whether there is such a repository; answers if not."""
      status = hub.status.get(repo)
      if status is None and repo in hub.files:
        return True
      code = {401: 'RepoNotFound', 403: 'GatedRepo', None: 'RepoNotFound'}
      more = {'X_Error_Code': code[status]} if status in code else {}
      self.answer({}, status or 404, **more)
      return False

    def do_GET(self):
      path = urllib.parse.unquote(urllib.parse.urlparse(self.path).path)
      if found := re.fullmatch(r'/api/(\w+/[^/]+/[^/]+)(/.*)?', path):
        if not self.repo(found[1]):
          return
        rest, files = found[2] or '', hub.files[found[1]]
        if rest.startswith('/tree'):
          self.answer([
              {'type': 'file', 'path': n, 'size': len(c), 'oid': _oid(c)}
              for n, c in files.items()
          ])
        elif 'revision/' in rest and not rest.endswith(('/main', _SHA)):
          self.answer({}, 404, X_Error_Code='RevisionNotFound')
        else:
          self.answer({
              'id': found[1].partition('/')[2], 'sha': _SHA, 'private': False,
              'tags': [], 'siblings': [{'rfilename': name} for name in files],
          })
        return
      found = re.fullmatch(
          r'/(datasets/)?([^/]+/[^/]+)/resolve/[^/]+/(.+)', path
      )
      repo = f'{found[1] or "models/"}{found[2]}' if found else ''
      if found and not self.repo(repo):
        return
      content = hub.files[repo].get(found[3]) if found else None
      if content is None:
        self.answer({}, 404, X_Error_Code='EntryNotFound')
      else:
        self.answer(content, ETag=f'"{_oid(content)}"', X_Repo_Commit=_SHA)

    do_HEAD = do_GET

  server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
  hub.url = f'http://127.0.0.1:{server.server_port}'
  thread = threading.Thread(target=server.serve_forever, args=(0.05,))
  thread.start()
  template = constants.HUGGINGFACE_CO_URL_TEMPLATE
  place = template.removeprefix(constants.ENDPOINT)
  for name, value in {
      'ENDPOINT': hub.url,
      'HUGGINGFACE_CO_URL_TEMPLATE': hub.url + place,
      'HF_HUB_CACHE': str(cache),
      'HF_HUB_OFFLINE': False,
  }.items():
    monkeypatch.setattr(constants, name, value)
  monkeypatch.setenv('HF_TOKEN', 'hf_test')
  for function in (hub_lib.model, hub_lib.data):
    function.cache_clear()
  try:
    yield hub
  finally:
    server.shutdown()
    thread.join()
    server.server_close()


def _oid(content):
  return hashlib.sha1(content).hexdigest()
