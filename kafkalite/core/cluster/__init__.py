"""The cluster's state: who leads what, who changes it, and where it is kept. [P]"""
