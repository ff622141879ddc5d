"""Spark: a source, a sink and warehouse loads, through PySpark alone.                    [IO]"""
