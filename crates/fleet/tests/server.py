# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a ClickHouse server answers by HTTP, as far as `debox fleet` asks it.

    server.py DIRECTORY USER PASSWORD

The SQL, the parameters, the tables are ClickHouse's own, in chDB; only HTTP is ours. Prints its port.
"""

import sys
import tempfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qsl, urlsplit

from chdb import session

FORMAT = "JSONCompactEachRowWithNamesAndTypes"
KNOWN = {"default_format", "output_format_json_quote_64bit_integers", "database", "query", "insert_deduplication_token",
         "deduplicate_blocks_in_dependent_materialized_views"}  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    def body(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            whole = b""
            while size := int(self.rfile.readline(), 16):
                whole += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return whole
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self):
        asked = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        body = self.body()
        if (self.headers.get("X-ClickHouse-User"), self.headers.get("X-ClickHouse-Key")) != tuple(sys.argv[2:4]):
            return 403, b"Code: 516. DB::Exception: Authentication failed. (AUTHENTICATION_FAILED)"
        params = {name[6:]: value for name, value in asked.items() if name.startswith("param_")}
        assert asked["default_format"] == FORMAT and set(asked) <= KNOWN | {"param_" + name for name in params}, asked
        try:
            if "query" not in asked:
                return 200, DATABASE.query(body.decode(), FORMAT, params=params).bytes()
            head, form = asked["query"].split(" FORMAT ")
            assert form == "Parquet" and asked["insert_deduplication_token"], asked
            with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
                file.write(body)
                file.flush()
                columns = DATABASE.query(f"DESCRIBE file('{file.name}')", "TSV").bytes().decode().split("\n")
                names = ", ".join(line.split("\t")[0] for line in columns if line)
                sql = f"{head} ({names}) SELECT {names} FROM file('{file.name}')"
                return 200, DATABASE.query(sql, FORMAT, params=params).bytes()
        except RuntimeError as error:
            return 404, str(error).encode()

    def do_POST(self):
        status, text = self.answer()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *words):
        pass


DATABASE = session.Session(sys.argv[1])
server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
