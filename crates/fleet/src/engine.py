# SPDX-License-Identifier: MIT OR Apache-2.0
"""What does chDB, ClickHouse's engine in Python, answer to these statements?

Standard input is a JSON object: `path` of a database, or null for one that is gone with this
process; `statements`; `params` for {name:Type} in them. The rows of the last statement go
to standard output as ClickHouse's JSONCompactEachRowWithNamesAndTypes; what is wrong goes to
standard error, with status 1.
"""

import json
import sys


def answer(ask):
    from chdb import session

    database = session.Session(ask["path"]) if ask["path"] else session.Session()
    try:
        result = None
        for statement in ask["statements"]:
            result = database.query(statement, "JSONCompactEachRowWithNamesAndTypes", params=ask["params"])
        if result is not None:
            sys.stdout.buffer.write(result.bytes())
            sys.stdout.buffer.flush()
    finally:
        database.close()


try:
    answer(json.load(sys.stdin))
except BrokenPipeError:
    sys.exit(1)
except Exception as error:  # Whatever it is: one who asks from another program sees no traceback.
    sys.exit(str(error))
