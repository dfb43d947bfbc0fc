"""A metadata server as Google Cloud has one for each of its machines."""

from collections.abc import Iterator, Mapping
import contextlib
import http.server
import threading


@contextlib.contextmanager
def serve(values: Mapping[str, str]) -> Iterator[str]:
  """Serves what is told of an instance; yields the server's name and port.

  Args:
    values: by path; those of `attributes/`, too. They may change.
  """

  class Handler(http.server.BaseHTTPRequestHandler):

    def do_GET(self):
      # As the documentation has it: a header must be there.
      name = self.path.removeprefix('/computeMetadata/v1/instance/')
      good = self.headers['Metadata-Flavor'] == 'Google' and name in values
      self.send_response(200 if good else 403)
      self.end_headers()
      self.wfile.write(values.get(name, '').encode())

    def log_message(self, *args):
      pass

  with http.server.HTTPServer(('localhost', 0), Handler) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f'localhost:{server.server_port}'
    server.shutdown()
