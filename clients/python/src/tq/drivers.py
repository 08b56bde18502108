"""Statements on the connection of a caller, whatever driver or framework it belongs to.

Every statement is one round trip without a named prepared statement, so that it works behind a pooler in transaction
mode. Nothing here begins, commits or rolls back a transaction.
"""
from __future__ import annotations

import ctypes
import importlib
import logging
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from tq import errors

if TYPE_CHECKING:
    import psycopg

log = logging.getLogger("tq.worker")
P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Rows = list[tuple[Any, ...]]


class Either(Generic[T]):
    """For type checkers: a T, or an awaitable of it if the connection is asynchronous."""


class Verb(Protocol[P, T_co]):
    """The type of a function whose first argument is a connection."""

    @overload
    def __call__(self, conn: psycopg.AsyncConnection[Any], /, *args: P.args,  # type: ignore[misc]
                 **kwargs: P.kwargs) -> Awaitable[T_co]: ...

    @overload
    def __call__(self, conn: Any, /, *args: P.args, **kwargs: P.kwargs) -> T_co: ...


def verb(function: Callable[Concatenate[Any, P], Either[T]]) -> Verb[P, T]:
    """For type checkers: tells what the function returns for each kind of connection."""
    return cast("Verb[P, T]", function)


def _is(conn: object, module: str, *names: str) -> bool:
    """Whether `conn` is an instance of a class of a module, without importing the module."""
    found = sys.modules.get(module)
    return found is not None and any(isinstance(conn, getattr(found, name)) for name in names if hasattr(found, name))


def is_async(conn: object) -> bool:
    return _is(conn, "psycopg", "AsyncConnection")


def all_rows(rows: Rows) -> Rows:
    return rows


def run(conn: Any, sql: str, params: Sequence[Any], read: Callable[[Rows], T]) -> Either[T]:
    """Executes a statement and returns `read(rows)`. For an asynchronous connection it returns an awaitable of that.

    Placeholders are `%s`. `rows` is a list of tuples, empty for a statement without a result. Errors of tq are raised as
    classes of `tq.errors`, all others as the driver raises them.
    """
    if is_async(conn):
        return cast("Either[T]", _run_async(conn, sql, params, read))
    return cast("Either[T]", run_now(conn, sql, params, read))


def run_now(conn: Any, sql: str, params: Sequence[Any], read: Callable[[Rows], T]) -> T:
    """As `run`, for a connection that is not asynchronous."""
    try:
        rows = _rows(conn, sql, params)
    except Exception as error:
        known = errors.translated(error)
        if known is None:
            raise
        raise known from error
    return read(rows)


async def _run_async(conn: Any, sql: str, params: Sequence[Any], read: Callable[[Rows], T]) -> T:
    psycopg: Any = sys.modules["psycopg"]
    try:
        async with psycopg.AsyncCursor(conn, row_factory=psycopg.rows.tuple_row) as cur:
            await cur.execute(sql, params, prepare=False)
            rows = await cur.fetchall() if cur.description is not None else []
    except Exception as error:
        known = errors.translated(error)
        if known is None:
            raise
        raise known from error
    return read(rows)


def _rows(conn: Any, sql: str, params: Sequence[Any]) -> Rows:
    if _is(conn, "psycopg", "Connection"):
        psycopg: Any = sys.modules["psycopg"]
        with psycopg.Cursor(conn, row_factory=psycopg.rows.tuple_row) as cur:
            cur.execute(sql, params, prepare=False)
            return list(cur.fetchall()) if cur.description is not None else []
    if _is(conn, "psycopg2.extensions", "connection"):
        with conn.cursor(cursor_factory=sys.modules["psycopg2.extensions"].cursor) as cur:
            return _fetched(cur, sql, params)
    if _is(conn, "sqlalchemy.orm", "Session", "scoped_session"):
        conn = conn.connection()
    if _is(conn, "sqlalchemy.engine", "Connection"):
        # not the driver's connection: SQLAlchemy would not know that a transaction has begun, and never commit it
        if not getattr(conn, "_is_future", True) and not conn.in_transaction():
            conn = conn.execution_options(autocommit=True)      # as 1.4 does for an INSERT outside a transaction
        result = conn.exec_driver_sql(sql, tuple(params))
        return [tuple(row) for row in result] if result.returns_rows else []
    if hasattr(conn, "cursor"):     # Django, and other wrappers of a driver's connection
        with conn.cursor() as cur:
            return _fetched(cur, sql, params)
    raise TypeError(f"not a connection to PostgreSQL that tq knows: {type(conn).__module__}.{type(conn).__qualname__}")


def _fetched(cur: Any, sql: str, params: Sequence[Any]) -> Rows:
    cur.execute(sql, params)
    return [tuple(row) for row in cur.fetchall()] if cur.description is not None else []


# --- connections of the worker

# client_encoding: psycopg returns bytes in a database of SQL_ASCII, and a payload may not fit the encoding of PGCLIENTENCODING
DEFAULTS = {"connect_timeout": "10", "keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "3", "tcp_user_timeout": "20000",
            "client_encoding": "UTF8"}
DRIVERS = ("psycopg", "psycopg2")
VERBOSE = 2     # of PQsetErrorVerbosity
STATE = re.compile(":  ([0-9A-Z]{5}): ")
NO_PASSWORD = "no password supplied"    # an error of libpq: the server wants one
# the server ends the session, or is a standby now: another one may be the primary
GONE = ("57P01", "57P02", "57P03", "57P05", "25P03", "25006")


def driver_named(name: str | None = None) -> ModuleType:
    """The module of a driver; without a name, psycopg 3 or else psycopg2."""
    for one in (name,) if name else DRIVERS:
        try:
            return importlib.import_module(one)
        except ImportError:
            pass
    raise ImportError(f"tq needs a driver: install {name or ' or '.join(DRIVERS)}")


def settings(dsn: str, driver: Any) -> dict[str, Any]:
    """Those of a connection. `dsn` overrides the defaults. They notice a dead network within half a minute."""
    parse = driver.conninfo.conninfo_to_dict if driver.__name__ == "psycopg" else sys.modules["psycopg2.extensions"].parse_dsn
    try:
        return {**DEFAULTS, **parse(dsn)}
    except driver.ProgrammingError as error:
        raise ValueError(f"not a connection string: {str(error).strip()}") from None


def connect(dsn: str, name: str, driver: Any) -> Any:
    """A connection in autocommit mode."""
    conn = driver.connect(**{"application_name": name, **settings(dsn, driver)})
    conn.autocommit = True
    return conn


def refusal(dsn: str, name: str, driver: Any) -> str | None:
    """Connects once more, and returns the SQLSTATE of a server that refuses; None if there is none.

    Drivers do not have it. libpq adds it to the message if it is asked to before it connects.
    """
    given = {"application_name": name, **settings(dsn, driver)}
    array = ctypes.c_char_p * (len(given) + 1)
    names, values = array(*map(str.encode, given)), array(*(str(one).encode() for one in given.values()))
    try:
        libpq = _libpq(driver)
        libpq.PQconnectStartParams.restype = ctypes.c_void_p
        libpq.PQerrorMessage.restype = ctypes.c_char_p
        conn = ctypes.c_void_p(libpq.PQconnectStartParams(names, values, 0))
    except (AttributeError, KeyError, OSError) as error:
        log.debug("the driver's libpq is not found: %s", error)
        return None
    libpq.PQsetErrorVerbosity(conn, VERBOSE)
    libpq.PQreset(conn)
    message = (libpq.PQerrorMessage(conn) or b"").decode(errors="replace")
    libpq.PQfinish(conn)
    if NO_PASSWORD in message:
        return "28P01"
    found = STATE.search(message)
    return found[1] if found else None


def _libpq(driver: Any) -> ctypes.CDLL:
    """The libpq that the driver has loaded."""
    if driver.__name__ == "psycopg2":
        return ctypes.CDLL(sys.modules["psycopg2._psycopg"].__file__)
    if driver.pq.__impl__ == "python":
        return ctypes.CDLL(sys.modules["psycopg.pq._pq_ctypes"].pq._name)
    return ctypes.CDLL(sys.modules[f"psycopg_{driver.pq.__impl__}.pq"].__file__)


def cancel(conn: Any) -> None:
    """Asks the server to end the statement that runs. Other threads go on meanwhile, even if the server does not answer."""
    if not _is(conn, "psycopg2.extensions", "connection"):
        conn.cancel()
        return
    # psycopg2's own holds the lock of the interpreter while it waits for the server
    library = sys.modules["psycopg2._psycopg"].__file__
    holding, libpq = ctypes.PyDLL(library), ctypes.CDLL(library)
    holding.PQgetCancel.restype = ctypes.c_void_p
    # with the lock: no other thread closes the connection meanwhile
    request = ctypes.c_void_p(holding.PQgetCancel(ctypes.c_void_p(conn.pgconn_ptr)))
    libpq.PQcancel(request, ctypes.create_string_buffer(256), 256)
    libpq.PQfreeCancel(request)


def is_lost(conn: Any, error: BaseException) -> bool:
    """Whether the connection ended with this error, so that the outcome of the statement is unknown."""
    code = errors.sqlstate(error)
    if code is not None:
        return code in GONE or code.startswith("08")
    return bool(conn.closed) or type(error).__name__ in ("OperationalError", "InterfaceError")
