"""A topology of kafkalite.streams on Spark: its own tasks, inside Structured Streaming.     [IO]"""
