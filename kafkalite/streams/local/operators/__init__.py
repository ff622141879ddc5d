"""The operators of a task, one file a subject: functions from batches to batches. [P]"""
