"""Processes are killed and servers stopped, at random times under full load."""
from scenario import scenario


def restarts(server, log):
    """Has the server come back since that byte of its log?"""
    return "database system is ready to accept connections" in server.log(log)


@scenario("kill-client", "a client is killed with SIGKILL, in whatever it does")
def kill_client(t):
    server = t.server()
    load = t.load(server)
    for _ in t.rounds(6):
        load.progress(t.random.randrange(5_000, 20_000))
        load.kill(t.random.choice(["producer", "worker"]), t.random)
        t.did("clients killed")
    t.prove(server, load)
