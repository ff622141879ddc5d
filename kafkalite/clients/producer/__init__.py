"""The producer: records and columns in, acknowledged batches out. [P]"""
