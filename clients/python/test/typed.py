"""A program that `mypy --strict` must accept. Where a line has `type: ignore`, it must refuse the line: it also reports those that
are not needed."""
import contextlib
import datetime
from collections.abc import Iterator

import psycopg
import tq
from tq import codec, testing

app = tq.App("shop", codec=codec.HS256({"a": bytes(32)}, "a"))


class Tenant:
    @contextlib.contextmanager
    def run(self, job: tq.Job) -> Iterator[None]:
        yield


app.middleware.append(Tenant())


@app.schedule("nightly", cron="0 3 * * *")
@app.task(queue="mail", max_attempts=3)
def welcome(job: tq.Job) -> dict[str, int]:
    job.check()
    if job.attempt > 3:
        raise tq.Retry("10 min")
    return {"attempt": job.attempt}


@app.task
async def report(job: tq.AsyncJob) -> str:
    return await job.heartbeat(progress={"percent": 50})


def produce(conn: psycopg.Connection[tuple[object, ...]]) -> int | None:
    welcome.enqueue(conn, {"to": "ada"}, delay=datetime.timedelta(seconds=5))
    created: list[int | None] = tq.enqueue_many(conn, "mail", [1, 2], kinds=["a", None])
    found: int | None = tq.find(conn, "mail", "key")
    freed: bool = tq.free_key(conn, "mail", unique_key="key")
    state: str = tq.get(conn, 1).state
    tq.wait_jobs(conn, [one for one in created if one is not None], timeout="10 s")
    ready: list[int] = tq.ended(conn, [1])
    results: list[object] = [one["result"] for one in tq.outcomes(conn, ready)]
    tq.list(conn, "mail", state="dead", error=None, max=len(results))
    assert freed or state or tq.cancel(conn, 1) == "cancelled"
    tq.find(conn, "mail")  # type: ignore[call-overload]
    tq.find(conn, 1, "key")  # type: ignore[call-overload]
    number: str = tq.purge(conn, "mail", "dead")  # type: ignore[assignment]
    return found or len(number)


async def produce_async(conn: psycopg.AsyncConnection[tuple[object, ...]]) -> int | None:
    id: int | None = await tq.enqueue(conn, "mail", {"to": "ada"}, kind="welcome")
    return id


def work() -> int:
    ran: list[testing.Ran] = testing.drain(app, psycopg.connect())
    return app.worker("", queues=["mail"], concurrency=4).run() + len(ran)
