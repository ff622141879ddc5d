"""How often each word occurs.

kafkalite-streams run examples/wordcount/app.py -b 127.0.0.1:9092 --until-caught-up
"""

import re

from kafkalite.streams import Streams, string

WORD = re.compile(r"[a-z]+")

app = Streams("word-count", key=string(), value=string())

(
    app.stream("lines")
    .flat_map(lambda line: WORD.findall(line.lower()), name="words")
    .group_by(lambda word: word, name="by-word")
    .count(name="counts")
    .to_stream()
    .to("word-counts", create={"cleanup.policy": "compact"})
)
