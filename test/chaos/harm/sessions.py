"""Harm to sessions: interrupts and times out statements, terminates processes."""
import re
import signal

from harm.hands import harm

CLIENTS = "backend_type = 'client backend' AND application_name ~ '^(producer|worker|meddler|drain)[0-9]'"
TIMEOUTS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")


@harm("interrupts sent to clients' statements")
def cancel_clients(hand):
    """As pg_cancel_backend() and libpq's cancel request do."""
    sent = hand.signal(CLIENTS, signal.SIGINT)
    hand.pause(0.00001, 0.05)
    return sent


@harm("sessions terminated")
def terminate_clients(hand):
    sent = hand.signal(CLIENTS, signal.SIGTERM)
    hand.pause(0.001, 0.3)
    return sent


@harm("interrupts sent to tq's workers")
def cancel_workers(hand):
    sent = hand.signal("backend_type LIKE 'tq %%'", signal.SIGINT)
    hand.pause(0.001, 0.1)
    return sent


@harm("changes of timeouts")
def timeouts(hand):
    """Changes timeouts for all sessions, by a reload; about half of the time there are none."""
    for name in TIMEOUTS:
        value = round(1 * 50 ** hand.random.random()) if hand.random.random() < 0.5 else 0
        hand.sql(f"ALTER SYSTEM SET {name} = {value}")
    hand.sql("SELECT pg_reload_conf()")
    hand.pause(0.01, 0.2)


NAMED = {"log_line_prefix": "'%m [%p] %b %a %d '"}    # for ended_by()


def ended_by(server, what):
    """How often a client ended by this timeout, according to the log of a server with NAMED. Harm has timeouts of its own."""
    return len(re.findall(rf"^.* (?:producer|worker)\d+ \S+ (?:ERROR|FATAL):  .*due to {what} timeout", server.log(), re.M))


def reset_timeouts(server):
    for name in TIMEOUTS:
        server.sql(f"ALTER SYSTEM RESET {name}")
    server.reload()
