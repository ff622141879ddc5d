"""The parts that the coordinators of groups and of transactions share. [P]"""
