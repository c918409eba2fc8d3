"""ClickHouse's HTTP protocol in front of the embedded engine, to stand for a server.

`python -m support.fakes.clickhouse_shim FOLDER`: prints its port, and writes each statement with
its settings as a line of JSON to FOLDER/asked. There is no Keeper behind it, so statements with
ON CLUSTER are only parsed.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from chdb.session import Session


def serve(folder: Path) -> None:
    """Until the process is killed."""
    session, one_at_a_time = Session(str(folder / "data")), threading.Lock()

    def answer(sql: str, body: bytes, given: dict[str, str]) -> bytes:
        if " ON CLUSTER " in sql:
            session.query(f"EXPLAIN AST {sql}")
            return b""
        parameters = {k.removeprefix("param_"): v for k, v in given.items() if k[:6] == "param_"}
        if not body:
            return bytes(session.query(sql, "TabSeparated", params=parameters).bytes())
        target, form = sql.rsplit(" FORMAT ", 1)
        with tempfile.NamedTemporaryFile(dir=folder) as rows:
            rows.write(body)
            rows.flush()
            session.query(f"{target} SELECT * FROM file('{rows.name}', {form})")
        return b""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            given = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            sql = given.pop("query", None)
            if sql is None:
                sql, body = body.decode(), b""
            with one_at_a_time, (folder / "asked").open("a") as asked:
                asked.write(json.dumps({"sql": sql, "settings": given}) + "\n")
                try:
                    status, content = 200, answer(sql.strip(), body, given)
                except RuntimeError as error:
                    status, content = 500, str(error).encode()
            self.send_response(status)
            if status != 200:
                code = content.decode().partition("Code: ")[2].partition(".")[0]
                self.send_header("X-ClickHouse-Exception-Code", code)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
