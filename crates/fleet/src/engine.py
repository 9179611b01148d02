# SPDX-License-Identifier: MIT OR Apache-2.0
"""What does chDB, ClickHouse's engine in Python, answer to these statements?

Each line of standard input is a JSON object: `path` of a database, or null for one that is gone
with this process, which is the same in all of them; `statements`; `params` for {name:Type} in
them. For each a line with a JSON object goes to standard output: `wrong`, what is wrong with a
statement, which is the last that was run; or `bytes`, the length of what follows it, the rows of
the last statement as ClickHouse's JSONCompactEachRowWithNamesAndTypes. It ends where its input does.
"""

import json
import sys


def answer(database, ask):
    result = None
    for statement in ask["statements"]:
        result = database.query(statement, "JSONCompactEachRowWithNamesAndTypes", params=ask["params"])
    return result.bytes() if result is not None else b""


def main():
    from chdb import session

    database = None
    for line in sys.stdin:
        ask = json.loads(line)
        if database is None:
            database = session.Session(ask["path"]) if ask["path"] else session.Session()
        try:
            rows = answer(database, ask)
        except Exception as error:  # Whatever it is: one who asks from another program sees no traceback.
            rows, head = b"", {"wrong": str(error)}
        else:
            head = {"bytes": len(rows)}
        sys.stdout.buffer.write(json.dumps(head).encode() + b"\n")
        sys.stdout.buffer.write(rows)
        sys.stdout.buffer.flush()
        del rows
    if database is not None:
        database.close()


try:
    main()
except BrokenPipeError:
    sys.exit(1)
except Exception as error:
    sys.exit(str(error))
