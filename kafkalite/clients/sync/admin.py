"""The blocking admin client.                                                               [IO]

Owns   nothing: it is the twin of `kafkalite.clients.Admin`.
Fails  as that does.
"""

from __future__ import annotations

from kafkalite.clients.admin import client as asynchronous
from kafkalite.clients.cluster import Client
from kafkalite.clients.sync.twin import Twin, blocking, closing, made_like


class Admin(Twin[asynchronous.Admin]):
    """Asks about a cluster and changes it. Use it as a context manager.

    Its parameters are those of `kafkalite.clients.Admin`.

        from kafkalite.clients import NewTopic
        from kafkalite.clients.sync import Admin

        with Admin("127.0.0.1:9092") as admin:
            admin.create_topics([NewTopic("orders", 4)])
            print(admin.list_topics())
    """

    @made_like(asynchronous.Admin)
    def __init__(self) -> None: ...

    @property
    def client(self) -> Client:
        """The client that asks, to be shared with other blocking clients."""
        return self.read(lambda admin: admin.client)

    close = closing(asynchronous.Admin.close)

    create_topics = blocking(asynchronous.Admin.create_topics)
    create_missing_topics = blocking(asynchronous.Admin.create_missing_topics)
    delete_topics = blocking(asynchronous.Admin.delete_topics)
    create_partitions = blocking(asynchronous.Admin.create_partitions)
    list_topics = blocking(asynchronous.Admin.list_topics)
    describe_topics = blocking(asynchronous.Admin.describe_topics)
    delete_records = blocking(asynchronous.Admin.delete_records)
    list_offsets = blocking(asynchronous.Admin.list_offsets)
    beginning_offsets = blocking(asynchronous.Admin.beginning_offsets)
    end_offsets = blocking(asynchronous.Admin.end_offsets)

    describe_configs = blocking(asynchronous.Admin.describe_configs)
    alter_configs = blocking(asynchronous.Admin.alter_configs)

    list_groups = blocking(asynchronous.Admin.list_groups)
    describe_groups = blocking(asynchronous.Admin.describe_groups)
    delete_groups = blocking(asynchronous.Admin.delete_groups)
    list_group_offsets = blocking(asynchronous.Admin.list_group_offsets)
    alter_group_offsets = blocking(asynchronous.Admin.alter_group_offsets)
    delete_group_offsets = blocking(asynchronous.Admin.delete_group_offsets)

    list_transactions = blocking(asynchronous.Admin.list_transactions)
    describe_transactions = blocking(asynchronous.Admin.describe_transactions)
    describe_producers = blocking(asynchronous.Admin.describe_producers)
    fence_producer = blocking(asynchronous.Admin.fence_producer)
    abort_transaction = blocking(asynchronous.Admin.abort_transaction)

    describe_cluster = blocking(asynchronous.Admin.describe_cluster)
    api_versions = blocking(asynchronous.Admin.api_versions)
    describe_log_dirs = blocking(asynchronous.Admin.describe_log_dirs)
    elect_leaders = blocking(asynchronous.Admin.elect_leaders)
    alter_partition_reassignments = blocking(asynchronous.Admin.alter_partition_reassignments)
    list_partition_reassignments = blocking(asynchronous.Admin.list_partition_reassignments)
