"""Kafka's broker settings without effect here: accepted, described, listed as ignored.       [P]

These settings configure parts that this broker does not have: security, tiered storage, KRaft,
ZooKeeper, share and streams groups, quotas, JVM metrics. The broker knows their names, so that a
`server.properties` can be used as it is and a misspelt name is still an error.

    NAME TYPE [RANGE] DEFAULT      -: no default; nothing: the empty text; * at the type: dynamic

Owns   their names, types, ranges and defaults.
Source the answers of Apache Kafka 4.3.1 and 3.9.2 to DescribeConfigs; ranges as their `ConfigDef`s
       write them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple


class Accepted(NamedTuple):
    """One setting; the type by its name, the default as text, a range as `[1,...,9]` or words."""

    name: str
    type: str
    range: str
    default: str | None
    dynamic: bool


_SETTINGS: Final = """\
    add.partitions.to.txn.retry.backoff.max.ms INT [0,...] 100
    add.partitions.to.txn.retry.backoff.ms INT [1,...] 20
    alter.config.policy.class.name CLASS -
    alter.log.dirs.replication.quota.window.num INT [1,...] 11
    alter.log.dirs.replication.quota.window.size.seconds INT [1,...] 1
    authorizer.class.name STRING
    broker.heartbeat.interval.ms INT 2000
    broker.session.timeout.ms INT 9000
    client.quota.callback.class CLASS -
    config.providers LIST*
    connection.failed.authentication.delay.ms INT [0,...] 100
    connections.max.reauth.ms LONG 0
    controller.quorum.append.linger.ms INT [0,...] 25
    controller.quorum.auto.join.enable BOOLEAN false
    controller.quorum.bootstrap.servers LIST
    controller.quorum.election.backoff.max.ms INT [0,...] 1000
    controller.quorum.election.timeout.ms INT [0,...] 1000
    controller.quorum.fetch.max.bytes INT [1,...] 1048576
    controller.quorum.fetch.snapshot.max.bytes INT [1,...] 1048576
    controller.quorum.fetch.timeout.ms INT [0,...] 2000
    controller.quorum.request.timeout.ms INT [0,...] 2000
    controller.quorum.retry.backoff.ms INT [0,...] 20
    controller.quorum.voters LIST
    controller.quota.window.num INT [1,...] 11
    controller.quota.window.size.seconds INT [1,...] 1
    controller.socket.timeout.ms INT 30000
    cordoned.log.dirs LIST*
    create.topic.policy.class.name CLASS -
    delegation.token.expiry.check.interval.ms LONG [1,...] 3600000
    delegation.token.expiry.time.ms LONG [1,...] 86400000
    delegation.token.max.lifetime.ms LONG [1,...] 604800000
    delegation.token.secret.key PASSWORD -
    delete.records.purgatory.purge.interval.requests INT 1
    early.start.listeners LIST -
    fetch.purgatory.purge.interval.requests INT 1000
    follower.fetch.last.tiered.offset.enable BOOLEAN* false
    group.consumer.assignment.interval.ms INT* [0,...] 1000
    group.consumer.assignors LIST uniform,range
    group.consumer.heartbeat.interval.ms INT [1,...] 5000
    group.consumer.max.assignment.interval.ms INT [0,...] 15000
    group.consumer.max.heartbeat.interval.ms INT [1,...] 15000
    group.consumer.max.session.timeout.ms INT [1,...] 60000
    group.consumer.max.size INT [1,...] 2147483647
    group.consumer.migration.policy STRING bidirectional
    group.consumer.min.assignment.interval.ms INT [0,...] 0
    group.consumer.min.heartbeat.interval.ms INT [1,...] 5000
    group.consumer.min.session.timeout.ms INT [1,...] 45000
    group.consumer.session.timeout.ms INT [1,...] 45000
    group.coordinator.append.linger.ms INT [-1,...] -1
    group.coordinator.background.threads INT [1,...] 2
    group.coordinator.cached.buffer.max.bytes INT* [524288,...] 1048588
    group.coordinator.rebalance.protocols LIST [consumer,classic,share,streams] \
        classic,consumer,streams
    group.coordinator.threads INT [1,...] 4
    group.share.assignment.interval.ms INT* [0,...] 1000
    group.share.assignors LIST simple
    group.share.delivery.count.limit INT [2,...,10] 5
    group.share.heartbeat.interval.ms INT [1,...] 5000
    group.share.max.assignment.interval.ms INT [0,...] 15000
    group.share.max.delivery.count.limit INT [5,...,25] 10
    group.share.max.heartbeat.interval.ms INT [1,...] 15000
    group.share.max.partition.max.record.locks INT [2000,...,10000] 4000
    group.share.max.record.lock.duration.ms INT [30000,...,3600000] 60000
    group.share.max.session.timeout.ms INT [1,...] 60000
    group.share.max.share.sessions INT [1,...] 2000
    group.share.max.size INT [1,...,1000] 200
    group.share.min.assignment.interval.ms INT [0,...] 0
    group.share.min.delivery.count.limit INT [2,...,5] 2
    group.share.min.heartbeat.interval.ms INT [1,...] 5000
    group.share.min.partition.max.record.locks INT [100,...,2000] 100
    group.share.min.record.lock.duration.ms INT [1000,...,30000] 15000
    group.share.min.session.timeout.ms INT [1,...] 45000
    group.share.partition.max.record.locks INT [100,...,10000] 2000
    group.share.record.lock.duration.ms INT [1000,...,3600000] 30000
    group.share.session.timeout.ms INT [1,...] 45000
    group.streams.assignment.interval.ms INT* [0,...] 1000
    group.streams.heartbeat.interval.ms INT [1,...] 5000
    group.streams.initial.rebalance.delay.ms INT [0,...] 3000
    group.streams.max.assignment.interval.ms INT [0,...] 15000
    group.streams.max.heartbeat.interval.ms INT [1,...] 15000
    group.streams.max.session.timeout.ms INT [1,...] 60000
    group.streams.max.size INT [1,...] 2147483647
    group.streams.max.standby.replicas INT [0,...] 2
    group.streams.min.assignment.interval.ms INT [0,...] 0
    group.streams.min.heartbeat.interval.ms INT [1,...] 5000
    group.streams.min.session.timeout.ms INT [1,...] 45000
    group.streams.num.standby.replicas INT [0,...] 0
    group.streams.session.timeout.ms INT [1,...] 45000
    initial.broker.registration.timeout.ms INT 60000
    kafka.metrics.polling.interval.secs INT [1,...] 10
    kafka.metrics.reporters LIST
    log.dir.failure.timeout.ms LONG [1,...] 30000
    max.connection.creation.rate INT* [0,...] 2147483647
    max.request.partition.size.limit INT [1,...] 2000
    metadata.log.dir STRING -
    metadata.log.max.record.bytes.between.snapshots LONG [1,...] 20971520
    metadata.log.max.snapshot.interval.ms LONG [0,...] 3600000
    metadata.log.segment.bytes INT [8388608,...] 1073741824
    metadata.log.segment.ms LONG 604800000
    metadata.max.idle.interval.ms INT [0,...] 500
    metadata.max.retention.bytes LONG 104857600
    metadata.max.retention.ms LONG 604800000
    metric.reporters LIST* org.apache.kafka.common.metrics.JmxReporter
    metrics.num.samples INT [1,...] 2
    metrics.recording.level STRING INFO
    metrics.sample.window.ms LONG [1,...] 30000
    num.replica.alter.log.dirs.threads INT -
    offsets.load.buffer.size INT [1,...] 5242880
    offsets.topic.compression.codec INT 0
    principal.builder.class CLASS* \
        org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder
    process.roles LIST [broker,controller] -
    producer.purgatory.purge.interval.requests INT 1000
    quota.window.num INT [1,...] 11
    quota.window.size.seconds INT [1,...] 1
    remote.fetch.max.wait.ms INT* [1,...] 500
    remote.list.offsets.request.timeout.ms LONG* [1,...] 30000
    remote.log.index.file.cache.total.size.bytes LONG* [1,...] 1073741824
    remote.log.manager.copier.thread.pool.size INT* [1,...] 10
    remote.log.manager.copy.max.bytes.per.second LONG* [1,...] 9223372036854775807
    remote.log.manager.copy.quota.window.num INT [1,...] 11
    remote.log.manager.copy.quota.window.size.seconds INT [1,...] 1
    remote.log.manager.expiration.thread.pool.size INT* [1,...] 10
    remote.log.manager.fetch.max.bytes.per.second LONG* [1,...] 9223372036854775807
    remote.log.manager.fetch.quota.window.num INT [1,...] 11
    remote.log.manager.fetch.quota.window.size.seconds INT [1,...] 1
    remote.log.manager.follower.thread.pool.size INT* [1,...] 2
    remote.log.manager.task.interval.ms LONG [1,...] 30000
    remote.log.manager.thread.pool.size INT [1,...] 2
    remote.log.metadata.custom.metadata.max.bytes INT [0,...] 128
    remote.log.metadata.manager.class.name STRING \
        org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager
    remote.log.metadata.manager.class.path STRING -
    remote.log.metadata.manager.impl.prefix STRING rlmm.config.
    remote.log.metadata.manager.listener.name STRING -
    remote.log.reader.max.pending.tasks INT [1,...] 100
    remote.log.reader.threads INT* [1,...] 10
    remote.log.storage.manager.class.name STRING -
    remote.log.storage.manager.class.path STRING -
    remote.log.storage.manager.impl.prefix STRING rsm.config.
    remote.log.storage.system.enable BOOLEAN false
    replica.socket.receive.buffer.bytes INT 65536
    sasl.client.callback.handler.class CLASS -
    sasl.enabled.mechanisms LIST* GSSAPI
    sasl.jaas.config PASSWORD* -
    sasl.kerberos.kinit.cmd STRING* /usr/bin/kinit
    sasl.kerberos.min.time.before.relogin LONG* 60000
    sasl.kerberos.principal.to.local.rules LIST* DEFAULT
    sasl.kerberos.service.name STRING* -
    sasl.kerberos.ticket.renew.jitter DOUBLE* 0.05
    sasl.kerberos.ticket.renew.window.factor DOUBLE* 0.8
    sasl.login.callback.handler.class CLASS -
    sasl.login.class CLASS -
    sasl.login.connect.timeout.ms INT -
    sasl.login.read.timeout.ms INT -
    sasl.login.refresh.buffer.seconds SHORT* 300
    sasl.login.refresh.min.period.seconds SHORT* 60
    sasl.login.refresh.window.factor DOUBLE* 0.8
    sasl.login.refresh.window.jitter DOUBLE* 0.05
    sasl.login.retry.backoff.max.ms LONG 10000
    sasl.login.retry.backoff.ms LONG 100
    sasl.mechanism.controller.protocol STRING GSSAPI
    sasl.mechanism.inter.broker.protocol STRING* GSSAPI
    sasl.oauthbearer.assertion.algorithm STRING RS256
    sasl.oauthbearer.assertion.claim.aud STRING -
    sasl.oauthbearer.assertion.claim.exp.seconds INT [0,...,86400] 300
    sasl.oauthbearer.assertion.claim.iss STRING -
    sasl.oauthbearer.assertion.claim.jti.include BOOLEAN false
    sasl.oauthbearer.assertion.claim.nbf.seconds INT [0,...,3600] 60
    sasl.oauthbearer.assertion.claim.sub STRING -
    sasl.oauthbearer.assertion.file STRING -
    sasl.oauthbearer.assertion.private.key.file STRING -
    sasl.oauthbearer.assertion.private.key.passphrase PASSWORD -
    sasl.oauthbearer.assertion.template.file STRING -
    sasl.oauthbearer.client.credentials.client.id STRING -
    sasl.oauthbearer.client.credentials.client.secret PASSWORD -
    sasl.oauthbearer.clock.skew.seconds INT 30
    sasl.oauthbearer.expected.audience LIST
    sasl.oauthbearer.expected.issuer STRING -
    sasl.oauthbearer.jwks.endpoint.refresh.ms LONG 3600000
    sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms LONG 10000
    sasl.oauthbearer.jwks.endpoint.retry.backoff.ms LONG 100
    sasl.oauthbearer.jwks.endpoint.url STRING -
    sasl.oauthbearer.jwt.retriever.class CLASS \
        org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever
    sasl.oauthbearer.jwt.validator.class CLASS \
        org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator
    sasl.oauthbearer.scope STRING -
    sasl.oauthbearer.scope.claim.name STRING scope
    sasl.oauthbearer.sub.claim.name STRING sub
    sasl.oauthbearer.token.endpoint.url STRING -
    sasl.server.callback.handler.class CLASS -
    sasl.server.max.receive.size INT 524288
    security.inter.broker.protocol STRING [PLAINTEXT,SSL,SASL_PLAINTEXT,SASL_SSL] PLAINTEXT
    security.providers STRING -
    share.coordinator.append.linger.ms INT [-1,...] -1
    share.coordinator.cached.buffer.max.bytes INT* [524288,...] 1048588
    share.coordinator.load.buffer.size INT [1,...] 5242880
    share.coordinator.snapshot.update.records.per.snapshot INT [0,...,500] 500
    share.coordinator.state.topic.compression.codec INT 0
    share.coordinator.state.topic.min.isr SHORT [1,...] 2
    share.coordinator.state.topic.num.partitions INT [1,...] 50
    share.coordinator.state.topic.replication.factor SHORT [1,...] 3
    share.coordinator.state.topic.segment.bytes INT [1,...] 104857600
    share.coordinator.threads INT [1,...] 1
    share.coordinator.write.timeout.ms INT [1,...] 5000
    share.fetch.purgatory.purge.interval.requests INT 1000
    socket.connection.setup.timeout.max.ms LONG 30000
    socket.connection.setup.timeout.ms LONG 10000
    ssl.allow.dn.changes BOOLEAN false
    ssl.allow.san.changes BOOLEAN false
    ssl.cipher.suites LIST*
    ssl.client.auth STRING* [required,requested,none] none
    ssl.enabled.protocols LIST* TLSv1.2,TLSv1.3
    ssl.endpoint.identification.algorithm STRING* https
    ssl.engine.factory.class CLASS* -
    ssl.key.password PASSWORD* -
    ssl.keymanager.algorithm STRING* SunX509
    ssl.keystore.certificate.chain PASSWORD* -
    ssl.keystore.key PASSWORD* -
    ssl.keystore.location STRING* -
    ssl.keystore.password PASSWORD* -
    ssl.keystore.type STRING* JKS
    ssl.principal.mapping.rules STRING DEFAULT
    ssl.protocol STRING* TLSv1.3
    ssl.provider STRING* -
    ssl.secure.random.implementation STRING* -
    ssl.trustmanager.algorithm STRING* PKIX
    ssl.truststore.certificates PASSWORD* -
    ssl.truststore.location STRING* -
    ssl.truststore.password PASSWORD* -
    ssl.truststore.type STRING* JKS
    telemetry.max.bytes INT [1,...] 1048576
    transaction.partition.verification.enable BOOLEAN* true
    transaction.state.log.load.buffer.size INT [1,...] 5242880
    transaction.two.phase.commit.enable BOOLEAN false
"""

_ONLY_BEFORE_4: Final = """\
    alter.config.policy.kraft.compatibility.enable BOOLEAN false
    auto.include.jmx.reporter BOOLEAN true
    control.plane.listener.name STRING -
    delegation.token.master.key PASSWORD -
    eligible.leader.replicas.enable BOOLEAN false
    group.share.max.groups SHORT [1,...,100] 10
    password.encoder.cipher.algorithm STRING AES/CBC/PKCS5Padding
    password.encoder.iterations INT [1024,...] 4096
    password.encoder.key.length INT [8,...] 128
    password.encoder.keyfactory.algorithm STRING -
    password.encoder.old.secret PASSWORD -
    password.encoder.secret PASSWORD -
    zookeeper.clientCnxnSocket STRING -
    zookeeper.max.in.flight.requests INT [1,...] 10
    zookeeper.metadata.migration.enable BOOLEAN false
    zookeeper.set.acl BOOLEAN false
    zookeeper.ssl.cipher.suites LIST -
    zookeeper.ssl.client.enable BOOLEAN false
    zookeeper.ssl.crl.enable BOOLEAN false
    zookeeper.ssl.enabled.protocols LIST -
    zookeeper.ssl.endpoint.identification.algorithm STRING HTTPS
    zookeeper.ssl.keystore.location STRING -
    zookeeper.ssl.keystore.password PASSWORD -
    zookeeper.ssl.keystore.type STRING -
    zookeeper.ssl.ocsp.enable BOOLEAN false
    zookeeper.ssl.protocol STRING TLSv1.2
    zookeeper.ssl.truststore.location STRING -
    zookeeper.ssl.truststore.password PASSWORD -
    zookeeper.ssl.truststore.type STRING -
"""

# Known to Kafka and shown by no broker.
UNDOCUMENTED: Final = frozenset(
    """
    controller.performance.always.log.threshold.ms controller.performance.sample.period.ms
    group.consumer.regex.refresh.interval.ms group.coordinator.new.enable group.share.enable
    group.share.initialize.retry.interval.ms group.share.persister.class.name
    internal.metadata.delete.delay.millis internal.metadata.log.segment.bytes
    internal.metadata.max.batch.size.in.bytes log.initial.task.delay.ms
    metadata.log.segment.min.bytes remote.log.index.file.cache.ttl.ms
    remote.log.manager.task.retry.backoff.max.ms remote.log.manager.task.retry.backoff.ms
    remote.log.manager.task.retry.jitter server.max.startup.time.ms
    share.coordinator.cold.partition.snapshot.interval.ms
    share.coordinator.state.topic.prune.interval.ms unclean.leader.election.interval.ms
    unstable.api.versions.enable unstable.feature.versions.enable
    zookeeper.metadata.migration.min.batch.size
    """.split()  # noqa: SIM905
)
PREFIXES: Final = ("listener.name.",)  # security of one listener


def accepted() -> Iterator[Accepted]:
    """The settings, by name within each release."""
    for row in (_SETTINGS + _ONLY_BEFORE_4).splitlines():
        name, kind, *rest = row.split()
        limits = rest.pop(0) if rest and rest[0].startswith("[") else ""
        text = " ".join(rest)
        default = None if text == "-" else text
        yield Accepted(name, kind.rstrip("*"), limits, default, kind.endswith("*"))
