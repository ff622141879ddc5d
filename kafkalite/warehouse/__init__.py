"""Warehouse loads: topics into tables, every record exactly once, with or without Spark. [IO]"""
