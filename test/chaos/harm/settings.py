"""Harm by configuration: settings that change with every reload, within the limits of load and checker."""
from harm.hands import harm

SETTINGS = {
    "tq.priority": (0, 100, 30000), "tq.lease_grace": ("0", "100ms", "2s"), "tq.strict_timeout": ("on", "off"),
    "tq.on_lost": ("retry", "dead"), "tq.cancel_grace": ("0", "1s"), "tq.max_payload": ("64kB", "1MB"),
    "tq.auto_create_queues": ("on", "off"), "tq.publish_limit": (0, 1, 50, 1000, 100000), "tq.max_pinned_wait": ("1ms", "100ms", "1min"),
    "tq.load_timeout": ("0", "1s", "10s"), "tq.segment_rows": (500, 3000, 100000), "tq.segment_interval": ("5s", "1min", "1h"),
    "tq.timer_horizon": ("1s", "10s", "10min"), "tq.claim_log_delay": ("0", "5ms", "100ms", "1s"), "tq.audit_interval": ("0", "1s", "1min"),
    "tq.executors": (0, 1, 4), "tq.executor_idle": ("0", "1s"), "tq.naptime": ("10ms", "100ms", "1s", "5s"),
    "tq.notify_interval": ("1ms", "1s"), "tq.claim_batch_limit": (100, 10000), "tq.max_attempts": (20, 100),
    "tq.retention": ("0", "1s", "1h"), "tq.dead_retention": ("0", "10s", "1d"),
    "tq.retry": ('{"policy": "fixed", "delay": "50 ms"}', '{"policy": "exponential", "delay": "10 ms", "max": "200 ms"}'),
}
# a queue's own settings override these: its journal is kept for the checker
KEEP = '{"retention": "1 d", "dead_retention": "1 d"}'


@harm("changes of tq's settings")
def settings(hand):
    for name in hand.random.sample(sorted(SETTINGS), 3):
        if hand.random.random() < 0.2:
            hand.sql(f"ALTER SYSTEM RESET {name}")
        else:
            hand.sql(f"ALTER SYSTEM SET {name} = '{hand.random.choice(SETTINGS[name])}'")
    hand.sql("SELECT pg_reload_conf()")
    hand.pause(0.005, 0.3)


@harm("times tq.workers was off")
def workers(hand):
    hand.sql("ALTER SYSTEM SET tq.workers = off")
    hand.sql("SELECT pg_reload_conf()")
    hand.pause(0.001, 0.5)
    hand.sql("ALTER SYSTEM RESET tq.workers")
    hand.sql("SELECT pg_reload_conf()")
    hand.pause(0.01, 1)


def put_back(server):
    """Resets all settings to the configured values."""
    for name in [*SETTINGS, "tq.workers"]:
        server.sql(f"ALTER SYSTEM RESET {name}")
    server.reload()
