"""The consumer: columns of records out of topics. [P]"""
