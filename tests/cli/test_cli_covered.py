"""Every command has a test in the fast tier: the one that is named here, which runs it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from command_tree import TREE

TESTS = {
    "kafkalite produce": "test_cli_produce_consume.py::test_lines_go_in_and_come_out",
    "kafkalite consume": "test_cli_produce_consume.py::test_lines_go_in_and_come_out",
    "kafkalite completion": "test_cli_help.py::test_a_shell_gets_its_script",
    "kafkalite server start": (
        "test_cli_server.py::test_it_says_when_it_is_ready_and_stops_when_told"
    ),
    "kafkalite server status": "test_cli_topics.py::test_the_cluster_s_state",
    "kafkalite cluster start": "test_cli_cluster.py::test_what_no_cluster_can_start_with",
    "kafkalite cluster status": "test_cli_cluster.py::test_the_state_of_one_broker",
    "kafkalite cluster move": "test_cli_cluster.py::test_plans_of_one_broker",
    "kafkalite cluster rebalance": "test_cli_cluster.py::test_plans_of_one_broker",
    "kafkalite cluster drain": "test_cli_cluster.py::test_plans_of_one_broker",
    "kafkalite topics list": "test_cli_topics.py::test_a_topic_comes_is_shown_and_goes",
    "kafkalite topics describe": "test_cli_topics.py::test_a_topic_comes_is_shown_and_goes",
    "kafkalite topics create": "test_cli_topics.py::test_a_topic_comes_is_shown_and_goes",
    "kafkalite topics alter": "test_cli_topics.py::test_topics_grow_and_change",
    "kafkalite topics trim": "test_cli_topics.py::test_trimming",
    "kafkalite topics delete": "test_cli_topics.py::test_a_topic_comes_is_shown_and_goes",
    "kafkalite groups list": "test_cli_groups.py::test_a_group_is_listed_and_described",
    "kafkalite groups describe": "test_cli_groups.py::test_a_group_is_listed_and_described",
    "kafkalite groups reset-offsets": "test_cli_groups.py::test_offsets_are_moved_for_good",
    "kafkalite groups delete": "test_cli_groups.py::test_groups_go",
    "kafkalite groups delete-offsets": "test_cli_groups.py::test_offsets_go",
    "kafkalite configs describe": "test_cli_topics.py::test_settings_are_shown",
    "kafkalite configs alter": "test_cli_topics.py::test_settings_are_changed",
    "kafkalite transactions list": (
        "test_cli_transactions.py::test_a_transaction_is_shown_and_aborted"
    ),
    "kafkalite transactions describe": (
        "test_cli_transactions.py::test_a_transaction_is_shown_and_aborted"
    ),
    "kafkalite transactions producers": (
        "test_cli_transactions.py::test_a_transaction_is_shown_and_aborted"
    ),
    "kafkalite transactions find-hanging": (
        "test_cli_transactions.py::test_a_transaction_is_shown_and_aborted"
    ),
    "kafkalite transactions abort": (
        "test_cli_transactions.py::test_a_transaction_is_shown_and_aborted"
    ),
    "kafkalite log dump": "test_cli_log.py::test_everything_is_dumped",
    "kafkalite log verify": "test_cli_log.py::test_a_sound_directory",
    "kafkalite perf produce": "test_cli_perf.py::test_what_is_sent_is_read",
    "kafkalite perf consume": "test_cli_perf.py::test_what_is_sent_is_read",
    "kafkalite registry start": "test_cli_server.py::test_a_registry_says_where_it_is",
    "kafkalite-streams run": ("test_cli_streams.py::test_what_is_there_runs_through_the_topology"),
    "kafkalite-streams describe": (
        "test_cli_streams.py::test_describe_prints_the_topology_and_runs_nothing"
    ),
    **dict.fromkeys(
        (f"kafkalite-streams dlq {word}" for word in ("list", "show", "replay")),
        "test_cli_streams.py::test_dead_letters_are_counted_shown_and_replayed",
    ),
    "kafkalite-streams status": (
        "test_cli_streams.py::test_the_status_of_an_application_tells_its_tasks_and_lags"
    ),
    "kafkalite-streams export-state": (
        "test_cli_streams.py::test_a_state_that_is_not_on_spark_is_not_exported"
    ),
    "kafkalite-streams reset": "test_cli_streams.py::test_an_application_begins_anew",
    # As far as it goes without a JVM; tests/examples runs the rest, in the whole suite.
    "kafkalite-spark compact": "test_cli_spark.py::test_a_table_that_is_not_there_is_named",
    "kafkalite-spark load": "test_cli_spark.py::test_a_topic_that_is_not_there_is_named",
}


def functions(file: str) -> dict[str, ast.FunctionDef]:
    module = ast.parse((Path(__file__).parent / file).read_text())
    assert "pytestmark" not in ast.unparse(module), f"{file}: a mark for all may make them slow"
    return {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}


def words_in(function: ast.FunctionDef) -> Iterator[str]:
    """The words that a test says, as arguments of a command are said."""
    for node in ast.walk(function):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_the_table_names_every_command() -> None:
    assert sorted(TESTS) == sorted(map(" ".join, TREE))


def test_every_command_is_run_by_a_test_of_the_fast_tier() -> None:
    wrong = []
    for command, test in TESTS.items():
        file, _, name = test.partition("::")
        function = functions(file).get(name)
        if function is None:
            wrong.append(f"{command}: there is no {test}")
        elif "pytest.mark.slow" in map(ast.unparse, function.decorator_list):
            wrong.append(f"{command}: {test} is slow")
        elif not set(command.split()[1:]) <= set(words_in(function)):
            wrong.append(f"{command}: {test} does not run it")
    assert not wrong, "\n".join(wrong)
