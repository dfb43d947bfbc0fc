"""Search over HTTP: python examples/serve.py MODEL_DIR PASSAGES.txt [PORT].

A passage a line. `curl 'localhost:8000/?q=a+query'` answers with JSON.
"""

import http.server
import json
import pathlib
import sys
from urllib import parse

import dualenc_jax as dj


def server(
    retriever: dj.Retriever, port: int
) -> http.server.ThreadingHTTPServer:
  class Handler(http.server.BaseHTTPRequestHandler):

    def do_GET(self):
      query = parse.parse_qs(parse.urlsplit(self.path).query).get('q', [''])
      hits = [
          {'score': hit.score, 'text': hit.passage.text}
          for hit in retriever.find(query[:1], k=10)[0]
      ]
      body = json.dumps(hits).encode()
      self.send_response(200)
      self.send_header('Content-Type', 'application/json')
      self.send_header('Content-Length', str(len(body)))
      self.end_headers()
      self.wfile.write(body)

  return http.server.ThreadingHTTPServer(('localhost', port), Handler)


if __name__ == '__main__':
  model_dir, passages, *port = sys.argv[1:]
  retriever = dj.Retriever.from_dir(model_dir)
  retriever.index(pathlib.Path(passages).read_text().splitlines())
  server(retriever, int(port[0]) if port else 8000).serve_forever()
