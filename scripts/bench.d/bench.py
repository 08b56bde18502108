#!/usr/bin/python3
"""The benchmark's parts, run by scripts/bench: list the rows, measure one, print the table.

usage: bench.py rows [--names LIST]
       bench.py plan ROW
       bench.py measure ROW --hosts SOCKET_DIR... --results DIR [--rounds N] [--quick] [--jobs N]
       bench.py report ROW... --results DIR --json FILE [--quick]
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import sys
import textwrap

import rows


def list_rows(options):
    if options.names is None:
        for group in dict.fromkeys(row.group for row in rows.ROWS.values()):
            print(f"rows of the group {group}:")
            for row in rows.ROWS.values():
                if row.group == group:
                    print(f"  {row.name:<16} {row.lines[0].what}")
        return 0
    names = []
    for name in (options.names or "speed").split(","):
        names += [row.name for row in rows.ROWS.values() if row.group == name] or [name]
    for name in names:
        if name not in rows.ROWS:
            print(f"bench: no row \"{name}\"; there are {', '.join(rows.ROWS)}", file=sys.stderr)
            return 2
    print("\n".join(names))
    return 0


def plan(options):
    """Prints the servers that the row needs: a word and its value on each line."""
    row = rows.ROWS[options.row]
    print(f"servers {row.servers}")
    print(f"live {'default' if row.settings is not None else 'own'}")
    for setting in row.settings or ():
        print(f"set {setting}")
    if row.preload:
        print(f"preload {row.preload}")
    if row.callgrind:
        print("callgrind")
    return 0


def measure(options):
    import psycopg2
    from server import BenchError, Server, busy
    from turns import Options

    row = rows.ROWS[options.row]
    try:
        servers = [Server(host) for host in options.hosts]
        result = {"about": about(servers[0]), "busy": busy()}
        result.update(row.measure(Options(options.rounds, options.quick, options.jobs), *servers))
        # a row that rolls back leaves dead tuples, and says []
        result.setdefault("dead", [tuple(line) for server in servers for line in server.dead_tuples()])
    except (BenchError, OSError, psycopg2.Error) as error:
        result = {"error": str(error).strip()}
        print(f"{options.row}: {result['error']}", file=sys.stderr)
    path = pathlib.Path(options.results) / f"{options.row}.json"
    path.write_text(json.dumps(result, indent=1, default=str), encoding="utf-8")
    return 1 if "error" in result else 0


def about(server):
    settings = dict(server.query("SELECT name, current_setting(name) FROM pg_settings WHERE name IN ('server_version',"
                                 " 'fsync', 'synchronous_commit', 'full_page_writes', 'shared_buffers')"))
    model = "unknown processor"
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    with open("/proc/meminfo", encoding="ascii") as file:
        memory = int(file.readline().split()[1]) >> 20
    return {"machine": f"{model}, {os.cpu_count()} cores, {memory} GB, Linux {platform.release()}",
            "server": f"PostgreSQL {settings.pop('server_version')}, "
                      + ", ".join(f"{name} {value}" for name, value in sorted(settings.items()))}


# -- the table

def number(value, unit):
    if value is None:
        return ""
    if unit == "/s":
        return f"{value / 1000:.1f} k/s" if value < 1e6 else f"{value / 1e6:.2f} M/s"
    digits = {"ms": 3, "% core": 2, "times": 2}.get(unit, 0)
    return f"{value:.{digits}f} {unit}".strip()


def judge(line, result):
    """(tq, baseline, ratio, bound, passed) of a line; passed is None for a line without measurements."""
    value, base = result.get(line.key), result.get(line.base)
    bound = line.most if line.least is None else line.least
    if value is None:
        return None, None, None, bound, None
    if line.most is not None:
        return value, base, None, bound, value <= bound
    share = None if base is None else value / base
    return value, base, share, bound, bound is None or (share is not None and share >= bound)


def report(options):
    results = {}
    for name in options.rows:
        path = pathlib.Path(options.results) / f"{name}.json"
        results[name] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"error": "not measured"}
    lines = [(line, results[name]) for name in options.rows for line in rows.ROWS[name].lines]
    counted = [result["dead"] for result in results.values() if "dead" in result]
    dead = {"tq": sum(dead for tables in counted for _, _, dead in tables) if counted else None,
            "note": f"in {sum(live for tables in counted for _, live, _ in tables)} live rows of the servers above"}
    lines.append((rows.DEAD, dead))

    table, notes, passed, failed, unknown, saved = [], [], 0, 0, 0, []
    for line, result in lines:
        value, base, share, bound, good = judge(line, result)
        passed, failed, unknown = passed + (good is True and bound is not None), failed + (good is False), unknown + (good is None)
        verdict = {True: "ok" if bound is not None else "", False: "MISSED", None: "no figure"}[good]
        limit = "" if bound is None else f"<= {bound:g}" if line.least is None else f">= {bound:g}"
        table.append((line.what, number(value, line.unit), line.versus, number(base, line.unit) if line.versus else "",
                      "" if share is None else f"{share:.2f}", limit, verdict))
        note = result.get("error") or result.get("note")
        if note and (not notes or notes[-1] != note):
            notes.append(note)
            table[-1] += (f"({len(notes)})",)
        saved.append({"what": line.what, "versus": line.versus, "unit": line.unit, "tq": value, "baseline": base,
                      "ratio": share, "least": line.least, "most": line.most, "passed": good})
    warnings = ["a quick run: too short to say how fast"] if options.quick else []
    about = next((result["about"] for result in results.values() if "about" in result), {})
    busy = max((result["busy"] for result in results.values() if "busy" in result), default=0)
    if busy > 0.05:
        warnings.append(f"others were using this machine: up to {busy:.0%} of it before a row began")
    show(table, notes, [*about.values(), *warnings])
    print(f"\n{passed} held, {failed} missed" + (f", {unknown} without a figure" if unknown else ""))
    pathlib.Path(options.json).write_text(json.dumps(
        {"at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), **about,
         "quick": options.quick, "table": saved, "rows": results}, indent=1), encoding="utf-8")
    return 1 if unknown or failed else 0


def show(table, notes, footer):
    table.insert(0, ("what", "tq", "compared with", "", "ratio", "target", ""))
    widths = [max(len(cells[n]) for cells in table) for n in range(7)]
    print()
    for cells in table:
        print(" ".join([f"{cells[0]:<{widths[0]}}", f"{cells[1]:>{widths[1]}} ", f"{cells[2]:<{widths[2]}}",
                        f"{cells[3]:>{widths[3]}}", f"{cells[4]:>{widths[4]}} ", f"{cells[5]:<{widths[5]}}",
                        f"{cells[6]:<{widths[6]}}", *cells[7:]]).rstrip())
    print()
    for n, note in enumerate(notes, 1):
        print(textwrap.fill(f"({n}) {note}", 110, subsequent_indent="    "))
    for line in footer:
        print(line)


def main():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("rows")
    command.set_defaults(run=list_rows)
    command.add_argument("--names")
    command = commands.add_parser("plan")
    command.set_defaults(run=plan)
    command.add_argument("row", choices=list(rows.ROWS))
    command = commands.add_parser("measure")
    command.set_defaults(run=measure)
    command.add_argument("row", choices=list(rows.ROWS))
    command.add_argument("--hosts", nargs="+", required=True)
    command.add_argument("--results", required=True)
    command.add_argument("--rounds", type=int, default=3)
    command.add_argument("--quick", action="store_true")
    command.add_argument("--jobs", type=int, default=10_000_000)
    command = commands.add_parser("report")
    command.set_defaults(run=report)
    command.add_argument("rows", nargs="+")
    command.add_argument("--results", required=True)
    command.add_argument("--json", required=True)
    command.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    sys.exit(options.run(options))


if __name__ == "__main__":
    main()
