"""A server at every address of a host."""

from __future__ import annotations

import asyncio
import socket

import pytest

from kafkalite.core.server.binding import bind_all

pytestmark = pytest.mark.usefixtures("each_loop")


def bound(host: str, port: int = 0) -> list[tuple[str, int]]:
    async def story() -> list[tuple[str, int]]:
        loop = asyncio.get_running_loop()

        async def open_at(address: str, port: int) -> asyncio.Server:
            return await loop.create_server(asyncio.Protocol, address, port, start_serving=False)

        servers = await bind_all(host, port, open_at)
        names = [server.sockets[0].getsockname()[:2] for server in servers]
        for each in servers:
            each.close()
        return names

    return asyncio.run(story())


@pytest.mark.parametrize("host", ["", "::"])
def test_everywhere_is_every_family_at_one_port(host: str) -> None:
    hosts, ports = zip(*bound(host), strict=True)
    assert set(hosts) == {"0.0.0.0", "::"}
    assert len(set(ports)) == 1
    assert ports[0]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0"])
def test_an_address_is_one_socket(host: str) -> None:
    ((name, port),) = bound(host)
    assert name == host
    assert port


def test_all_addresses_of_a_name_get_the_same_port() -> None:
    names = bound("localhost")
    assert {port for _, port in names} == {names[0][1]}


def test_a_family_that_is_taken_is_refused_and_leaves_no_server_behind() -> None:
    with socket.socket(socket.AF_INET6) as other:
        other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        other.bind(("::", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            bound("", port)
        assert bound("0.0.0.0", port) == [("0.0.0.0", port)]


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(OSError, match="assign"):
        bound("203.0.113.7")
