"""openapi.json is right: for each operation, requests made from it are answered as it says."""
import json
import random

import jsonschema

VALUES = {"integer": 3, "boolean": True, "string": "x"}
# what they need is not there: a lease, a schedule, a role, a handler, the address of a receiver, an empty queue
IN_VAIN = {"complete", "fail", "release", "bury", "get_schedule", "pause_schedule", "resume_schedule", "run_schedule", "grant", "revoke", "unhandle",
           "subscribe", "unsubscribe", "drop_queue"}
WRONG = {"integer": "3x", "boolean": "maybe", "string": 5, "array": "x"}


def type_of(schema):
    kind = schema.get("type")
    return kind[0] if isinstance(kind, list) else kind


def valid(name, schema, dice):
    """A value that the schema allows."""
    kind = type_of(schema)
    if kind == "array":
        return [valid(name, schema["items"], dice) for _ in range(dice.randint(1, 2))]
    if kind == "string" and schema.get("format") == "date-time":
        return dice.choice(["2030-01-01T00:00:00Z", "2030-01-01T00:00:00.5+02:00"])
    if kind == "string" and "interval" in schema.get("description", ""):
        return dice.choice(["10 min", "PT10M", "00:10:00"])
    if kind == "string" and "pattern" in schema:
        return "1.1"
    if kind == "integer":
        return dice.randint(1, 5)
    if kind is None:
        return {"settings": {}, "headers": {"a": 1}, "options": {}, "retry": {"policy": "fixed", "delay": "1s"}, "search": {"a": 1}}.get(name, dice.choice([{}, 1, "x", [1]]))
    return {"cron": "0 3 1 1 *", "timezone": "UTC", "unique_mode": "replace", "state": "dead", "overlap": "skip", "catch_up": "none"}.get(name, VALUES[kind])


def operations(description):
    """All but the stream that does not end."""
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            if operation["operationId"] == "events":
                continue
            yield method.upper(), path, operation


def request_for(path, operation, dice, spoil=None):
    """Path, query and body; the field `spoil` gets a value of another type."""
    query, body = [], {}
    for field in operation.get("parameters", []):
        if field["in"] == "header":
            continue
        value = valid(field["name"], field["schema"], dice)
        if field["name"] == spoil:
            value = WRONG[type_of(field["schema"])]
        text = json.dumps(value) if not isinstance(value, str) else value
        text = "".join(c if c.isalnum() else f"%{ord(c):02X}" for c in text)
        if field["in"] == "path":
            path = path.replace("{%s}" % field["name"], text)
        elif (field["required"] or field["name"] == spoil or dice.random() < 0.5) and (field["name"] != "wait" or spoil == "wait"):
            query.append(f"{field['name']}={text}")
    schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    for name, field in schema.get("properties", {}).items():
        if name == spoil:
            body[name] = WRONG[type_of(field)]
        elif name in schema.get("required", []) or (dice.random() < 0.3 and name != "wait"):
            body[name] = valid(name, field, dice)
    return path + ("?" + "&".join(query) if query else ""), body if schema else None


def case_description(front):
    description = front.get_json("/openapi.json")
    front.same(description["openapi"], "3.1.0", "openapi.json is there")
    names = [operation["operationId"] for _, _, operation in operations(description)]
    front.same(len(set(names)), len(names), "each operation has a name of its own")
    for _, _, operation in operations(description):
        for answer in operation["responses"].values():
            for content in answer.get("content", {}).values():
                jsonschema.Draft202012Validator.check_schema(content["schema"])
        schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        jsonschema.Draft202012Validator.check_schema(schema)


def problem_schema(description):
    return description["components"]["responses"]["problem"]["content"]["application/problem+json"]["schema"]


def agrees(front, description, operation, reply):
    """Why a reply is not as described; nothing if it is."""
    described = operation["responses"].get(str(reply.status))
    if described is None or "$ref" in described:
        if 400 <= reply.status < 500 or reply.status == 503:
            jsonschema.validate(reply.json, problem_schema(description))
            return ""
        return f"status {reply.status} is not described: {reply.body!r}"
    content = described.get("content")
    kind = reply.headers.get("content-type", "").split(";")[0]
    if content is None:
        return "" if reply.body == b"" else f"a body where none is described: {reply.body!r}"
    if kind not in content:
        return f"the type {kind!r} is not described"
    if kind == "application/json":
        jsonschema.validate(reply.json, content[kind]["schema"])
    return ""


def said_to_be_made(name, reply):
    """How many jobs a reply says that it has made; None if it does not say."""
    if reply.status >= 400:
        return 0
    if name in ("enqueue", "enqueue_task", "enqueue_many"):
        return sum(job["outcome"] in ("created", "replaced") for job in reply.json.get("jobs", [reply.json]))
    return None


def case_valid_requests(front):
    front.query("SELECT tq_enqueue('x')")
    description = front.get_json("/openapi.json")
    dice = random.Random(1)
    jobs = lambda: front.value("SELECT count(*) FROM tq_jobs")
    never = set()
    for method, path, operation in operations(description):
        wrong, good = [], 0
        for _ in range(12):
            target, body = request_for(path, operation, dice)
            before = jobs()
            reply = front.ask(method, target, body)
            good += reply.status < 300
            made, said = jobs() - before, said_to_be_made(operation["operationId"], reply)
            if said not in (None, made):
                wrong.append(f"{method} {target} {body}: {reply.body!r}, and {made} jobs were made")
            try:
                why = agrees(front, description, operation, reply)
            except jsonschema.ValidationError as error:
                why = f"{error.message} in {reply.body!r}"
            if why:
                wrong.append(f"{method} {target} {body}: {why}")
        front.say(not wrong, f"{operation['operationId']} answers as described", wrong[:1])
        if good == 0:
            never.add(operation["operationId"])
    front.same(never - IN_VAIN, set(), "each operation that can succeed does so")


def case_invalid_requests(front):
    description = front.get_json("/openapi.json")
    dice = random.Random(2)
    for method, path, operation in operations(description):
        schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        spoilable = [field["name"] for field in operation.get("parameters", []) if field["in"] != "header" and type_of(field["schema"]) in ("integer", "boolean")]
        spoilable += [name for name, field in schema.get("properties", {}).items() if type_of(field) in WRONG]
        wrong = []
        before = front.value("SELECT count(*) FROM tq_jobs")
        for name in spoilable:
            target, body = request_for(path, operation, dice, spoil=name)
            reply = front.ask(method, target, body)
            if reply.status != 400:
                wrong.append(f"{method} {target} {body}: {reply.status} {reply.body!r}")
        for name in schema.get("required", []):
            target, body = request_for(path, operation, dice)
            body.pop(name)
            reply = front.ask(method, target, body)
            if reply.status != 400 or name not in reply.json["detail"]:
                wrong.append(f"without {name}: {reply.status} {reply.body!r}")
        if schema:
            target, body = request_for(path, operation, dice)
            reply = front.ask(method, target, {**body, "unknown_field": 1})
            if reply.status != 400:
                wrong.append(f"an unknown field: {reply.status} {reply.body!r}")
        if front.value("SELECT count(*) FROM tq_jobs") != before:
            wrong.append("a refused request has had an effect")
        front.say(not wrong, f"{operation['operationId']} refuses what is wrong", wrong[:2])
