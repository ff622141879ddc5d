"""Expressions: functions of a record as data, which every engine can run.                  [P]

    types        the types of expressions
    catalog      the functions, and the types that they take and give
    tree         what an expression says
    expression   how users write it
    check        types found, errors before anything runs
    values       each function on Python values: the definition
    objects      an expression as a loop over Python objects
    arrow        an expression over Arrow arrays, by the kernels of arrow_kernels on arrow_types

Owns   nothing. The modules for Arrow need pyarrow and are imported by their users alone.
"""
