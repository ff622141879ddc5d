"""The local engine: a plan compiled to operators from columns to columns.               [P]"""
