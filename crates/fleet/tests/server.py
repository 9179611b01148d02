# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a ClickHouse server answers by HTTP, as far as `debox fleet` and ClickHouse's own client for Go ask it.

    server.py DIRECTORY USER PASSWORD

The SQL, the parameters, the tables, and what rows that are sent mean, are ClickHouse's own, in chDB; HTTP is ours, and the
few answers that the client for Go reads, which wants them in a form of the connection that chDB does not write. Prints its port.
"""

import base64
import json
import struct
import sys
import tempfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qsl, urlsplit

from chdb import session

ROWS = "JSONCompactEachRowWithNamesAndTypes"
SUMS_TOO = "deduplicate_blocks_in_dependent_materialized_views"
KNOWN = {"default_format", "output_format_json_quote_64bit_integers", "database", "query", "insert_deduplication_token",
         SUMS_TOO, "client_protocol_version", "async_insert", "max_execution_time"}  # fmt: skip
# How values of a type lie in the form that is named Native; others nobody reads here.
NATIVE = {"UInt8": "<B", "UInt32": "<I"}


def number(value):
    """Seven bits a byte, the lowest first."""
    bytes_ = b""
    while value >= 0x80:
        bytes_ += bytes((value & 0x7F | 0x80,))
        value >>= 7
    return bytes_ + bytes((value,))


def text(value):
    return number(len(value.encode())) + value.encode()


def native(rows):
    """Rows as a client of a revision since 54454 reads them: one block, with what stands before it and before each column."""
    lines = [json.loads(line) for line in rows.splitlines()]
    if not lines:
        return b""
    names, types, values = lines[0], lines[1], lines[2:]
    block = b"\x01\x00\x02" + struct.pack("<i", -1) + b"\x00" + number(len(names)) + number(len(values))
    for at, (name, kind) in enumerate(zip(names, types, strict=True)):
        block += text(name) + text(kind) + b"\x00"
        for row in values:
            block += text(row[at]) if kind == "String" else struct.pack(NATIVE[kind], row[at])
    return block


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

    def who(self):
        if basic := self.headers.get("Authorization"):
            user, _, password = base64.b64decode(basic.removeprefix("Basic ")).decode().partition(":")
            return user, password
        return self.headers.get("X-ClickHouse-User"), self.headers.get("X-ClickHouse-Key")

    def answer(self):
        asked = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        body = self.body()
        if self.who() != tuple(sys.argv[2:4]):
            return 403, b"Code: 516. DB::Exception: Authentication failed. (AUTHENTICATION_FAILED)"
        params = {name[6:]: value for name, value in asked.items() if name.startswith("param_")}
        assert set(asked) <= KNOWN | {"param_" + name for name in params}, asked
        form = {ROWS: lambda rows: rows, "Native": native}[asked["default_format"]]
        try:
            DATABASE.query(f"USE `{asked.get('database', 'default')}`")
            if "query" not in asked:
                return 200, form(DATABASE.query(body.decode(), ROWS, params=params).bytes())
            head, rows_form = asked["query"].split(" FORMAT ")
            with tempfile.NamedTemporaryFile() as file:
                file.write(body)
                file.flush()
                rows = f"file('{file.name}', '{rows_form}')"
                names = how = ""
                if rows_form == "Parquet":
                    # They are named in it, and stand in the order of whoever wrote them.
                    how = "SETTINGS insert_deduplication_token = '{}', {name} = {}".format(
                        asked["insert_deduplication_token"], asked[SUMS_TOO], name=SUMS_TOO)  # fmt: skip
                    columns = DATABASE.query(f"DESCRIBE {rows}", "TSV").bytes().decode().split("\n")
                    names = "(" + ", ".join(line.split("\t")[0] for line in columns if line) + ")"
                what = names.strip("()") or "*"
                insert = f"{head} {names} {how} SELECT {what} FROM {rows}"
                return 200, form(DATABASE.query(insert, ROWS, params=params).bytes())
        except RuntimeError as error:
            return 404, str(error).encode()

    def do_POST(self):
        status, answer = self.answer()
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *words):
        pass


DATABASE = session.Session(sys.argv[1])
server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
