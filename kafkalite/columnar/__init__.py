"""Topics as Arrow: offset ranges, read and decoded into columns, without Spark.        [P]"""
