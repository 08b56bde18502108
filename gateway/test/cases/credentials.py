"""JSON Web Tokens and certificates of clients, and attempts to get in with them."""
import base64
import hashlib
import hmac
import http.server
import json
import os
import signal
import ssl
import subprocess
import threading
import time

import grpc
import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from front import token_of, tokens_file
from grpc_calls import Caller
from polls import Stream
from scene import PATIENCE
from who import bearer, roles

SECRET = b"0123456789abcdef0123456789abcdef"


def encoded(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def secret_key(name, secret=SECRET):
    return {"kty": "oct", "kid": name, "k": encoded(secret)}


def public_key(name, key):
    algorithm = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    numbers = key.public_key().public_numbers()
    if algorithm is jwt.algorithms.RSAAlgorithm:
        size = (numbers.n.bit_length() + 7) // 8
        return {"kty": "RSA", "kid": name, "n": encoded(numbers.n.to_bytes(size, "big")), "e": encoded(numbers.e.to_bytes(3, "big"))}
    return {"kty": "EC", "crv": "P-256", "kid": name, "x": encoded(numbers.x.to_bytes(32, "big")), "y": encoded(numbers.y.to_bytes(32, "big"))}


def jwks(*keys):
    return json.dumps({"keys": keys})


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def claims(**more):
    return {"role": "gw_one", "exp": int(time.time()) + 600, **more}


def by_hand(header, body, sign):
    """A token whose header and signature the library would not make."""
    signed = f"{encoded(json.dumps(header).encode())}.{encoded(json.dumps(body).encode())}"
    return f"{signed}.{encoded(sign(signed.encode()))}"


def status(front, token):
    return front.ask("GET", "/v1/queues", headers=bearer(token)).status


def case_signatures(front):
    roles(front, "gw_one", "gw_two")
    front.query("SELECT tq_create_queue('j'), tq_grant('j', 'gw_one', 'produce')")
    rsa_key, ec_key = rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP256R1())
    keys = jwks(secret_key("s"), public_key("r", rsa_key), public_key("e", ec_key))
    front.gateway("--jwt-keys", write(front.file("keys"), keys))
    made = lambda key, algorithm, name, **more: jwt.encode(claims(**more), key, algorithm, headers={"kid": name} if name else None)
    for key, algorithm, name in ((SECRET, "HS256", "s"), (rsa_key, "RS256", "r"), (ec_key, "ES256", "e")):
        front.same(status(front, made(key, algorithm, name)), 200, f"a token signed with {algorithm}")
        front.same(status(front, made(key, algorithm, None)), 200, "... without the id of its key")
        front.same(status(front, made(key, algorithm, "other")), 401, "... with the id of another key")
        whole = made(key, algorithm, name)
        front.same(status(front, whole[:-8] + "AAAAAAAA"), 401, "... with another signature")
        header, _, signature = whole.split(".")
        front.same(status(front, f"{header}.{encoded(json.dumps(claims(role='gw_two')).encode())}.{signature}"), 401, "... with other claims")
    token = made(SECRET, "HS256", "s")
    front.same(front.post("/v1/jobs", {"queue": "j"}, headers=bearer(token)).status, 201, "the role has its rights")
    front.refused(front.post("/v1/jobs", {"queue": "j"}, headers=bearer(made(SECRET, "HS256", "s", role="gw_two"))), 403, "42501", "... and another one does not")
    front.same(front.post("/v1/jobs", {"queue": "j"}, headers=bearer(made(SECRET, "HS256", "s", role="gw_missing"))).status, 400, "a role that does not exist")

    # what is not signed with a key for its algorithm
    pem = rsa_key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    hs256 = lambda secret: lambda signed: hmac.new(secret, signed, hashlib.sha256).digest()
    for header, sign, text in (({"alg": "none"}, lambda _: b"", "no signature"), ({"alg": "none", "kid": "s"}, hs256(SECRET), "alg=none with a signature"),
                               ({"alg": "None"}, lambda _: b"", "alg=None"), ({"alg": "HS256", "kid": "r"}, hs256(pem), "the public key as a secret"),
                               ({"alg": "HS256"}, hs256(pem), "... without an id"), ({"alg": "HS256", "kid": "s"}, hs256(b""), "an empty secret"),
                               ({"alg": "HS512", "kid": "s"}, lambda signed: hmac.new(SECRET, signed, hashlib.sha512).digest(), "another algorithm"),
                               ({"alg": "HS256", "kid": "s", "crit": ["x"], "x": 1}, hs256(SECRET), "an extension that is critical"),
                               ({"alg": "HS256", "jwk": secret_key("own", b"x" * 32)}, hs256(b"x" * 32), "a key of its own")):
        front.refused(front.ask("GET", "/v1/queues", headers=bearer(by_hand(header, claims(), sign))), 401, None, text)
    for bad in ("..", "a.b.c", token + ".x", token.replace(".", "..", 1), "." + token, "x" * 8000 + "..", token[:20]):
        front.same(status(front, bad), 401, f"not a token: {bad[:12]}")


def case_claims(front):
    roles(front, "gw_one")
    now = int(time.time())
    front.gateway("--jwt-keys", write(front.file("keys"), jwks(secret_key("s"))), "--jwt-audience", "tq", "--jwt-issuer", "us")
    with_claims = lambda **more: status(front, jwt.encode({"role": "gw_one", "exp": now + 600, "aud": "tq", "iss": "us", **more}, SECRET, "HS256"))
    front.same(with_claims(), 200, "all claims")
    front.same(with_claims(aud=["x", "tq"]), 200, "one of several audiences")
    front.same(with_claims(nbf=now - 5, exp=now + 0.5 + 600), 200, "times with fractions")
    for name, more in {"expired": {"exp": now - 600}, "expires never": {"exp": "never"}, "no time": {"exp": None}, "later": {"nbf": now + 600}, "another audience": {"aud": "x"},
                       "other audiences": {"aud": ["x", "y"]}, "no audience": {"aud": None}, "another issuer": {"iss": "them"}, "no issuer": {"iss": None},
                       "no role": {"role": ""}, "a role that is a number": {"role": 1}}.items():
        front.same(with_claims(**more), 401, name)
    body = {"role": "gw_one", "aud": "tq", "iss": "us"}
    front.same(status(front, jwt.encode(body, SECRET, "HS256")), 401, "without a time of expiry")
    front.same(status(front, by_hand({"alg": "HS256"}, [1], lambda signed: hmac.new(SECRET, signed, hashlib.sha256).digest())), 401, "claims that are no object")
    reply = front.ask("GET", "/v1/queues", headers=bearer(jwt.encode({**body, "exp": now - 600}, SECRET, "HS256")))
    front.say("expired" in reply.json["detail"] and "invalid_token" in reply.headers["www-authenticate"], "it says what is wrong", reply.body)


def case_keys(front):
    roles(front, "gw_one")
    path = write(front.file("keys"), jwks(secret_key("s")))
    process = front.gateway("--jwt-keys", path, "--auth", tokens_file(front, ["gw_one"]))
    old, new = jwt.encode(claims(), SECRET, "HS256", {"kid": "s"}), jwt.encode(claims(), b"y" * 32, "HS256", {"kid": "t"})
    front.same((status(front, old), status(front, new), status(front, token_of("gw_one"))), (200, 401, 200), "both kinds of token")
    stream = Stream(front, "", token=old)
    stream.next("stats")
    write(path, jwks(secret_key("t", b"y" * 32)))
    process.send_signal(signal.SIGHUP)
    front.same(stream.next("error")[1]["status"], 401, "a stream of events ends with its key")
    front.until(lambda: status(front, new) == 200, "the keys are read again")
    front.same(status(front, old), 401, "... and the other key is known no more")
    write(path, "{}")
    process.send_signal(signal.SIGHUP)
    line = front.logged(process, "kept")
    front.same(status(front, new), 200, "a file that cannot be read changes nothing")
    _, _, errors = front.end(process, signal.SIGTERM)
    front.say(new.split(".")[2] not in errors + line and encoded(b"y" * 32) not in errors + line, "no secret is in the log", errors)
    weak = rsa.generate_private_key(65537, 1024)
    for text, word in (("", "JWKS"), ("[]", "JWKS"), (jwks(), "no key"), (jwks(secret_key("s", b"short")), "shorter"), (jwks(public_key("w", weak)), "no key"),
                       (jwks({"kty": "RSA"}), "no key"), (jwks({**secret_key("s"), "alg": "none"}), "no key"), (jwks({**secret_key("s"), "use": "enc"}), "no key")):
        code, _, errors = front.end(front.start(front.program, "--jwt-keys", write(front.file("keys"), text)))
        front.say(code == 1 and word in errors, f"refused: {text[:40]}", (code, errors))
    for options, word in ((("--jwt-keys", "http://example.org/keys"), "https"), (("--jwt-keys", "https://"), "URL"), (("--jwt-issuer", "us"), "--jwt-keys"),
                          (("--client-ca", "x"), "together"), (("--client-roles", "x", "--client-ca", "x"), "together")):
        code, _, errors = front.end(front.start(front.program, *options))
        front.say(code == 2 and word in errors, f"refused: {' '.join(options)}", (code, errors))


class Publisher(http.server.BaseHTTPRequestHandler):
    def do_GET(self):  # pylint: disable=invalid-name
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.keys.encode())

    def log_message(self, *_):  # pylint: disable=arguments-differ
        pass


def case_published_keys(front):
    roles(front, "gw_one")
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    tokens = [jwt.encode(claims(), key, "ES256", {"kid": f"k{i}"}) for i, key in enumerate(keys)]
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Publisher)
    server.status, server.keys = 500, ""
    threading.Thread(target=server.serve_forever, daemon=True).start()
    front.gateway("--jwt-keys", f"http://127.0.0.1:{server.server_port}/keys?x=1")
    front.same((front.ask("GET", "/readyz").status, status(front, tokens[0])), (503, 503), "without keys it is not ready")
    server.status, server.keys = 200, jwks(secret_key("s"))
    front.same(status(front, jwt.encode(claims(), SECRET, "HS256")), 503, "a secret that is published is no key")
    server.keys = jwks(public_key("k0", keys[0]))
    front.until(lambda: status(front, tokens[0]) == 200, "the keys are fetched")
    front.same(front.ask("GET", "/readyz").status, 200, "it is ready")
    server.keys = jwks(public_key("k1", keys[1]))
    front.until(lambda: status(front, tokens[1]) == 200, "a token with an unknown key has them fetched again")
    front.same(status(front, tokens[0]), 401, "... and the other key is known no more")
    server.shutdown()


def certificate(front, name, subject, ca=None):
    """A key and a certificate; signed by itself, or by another one."""
    cert, key = front.file(f"{name}.crt"), front.file(f"{name}.key")
    signed = ["-CA", ca[0], "-CAkey", ca[1]] if ca else []
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", f"/CN={subject}", "-addext", f"subjectAltName=DNS:{subject.replace(' ', '-')}", *signed], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=PATIENCE)
    return cert, key


def case_certificates(front):
    roles(front, "gw_one", "gw_two")
    ca, other_ca = certificate(front, "ca", "our CA"), certificate(front, "other", "their CA")
    server = certificate(front, "server", "localhost", ca)
    unknown, spaced = certificate(front, "unknown", "printer-8", ca), certificate(front, "spaced", "printer-7 x", ca)
    forged = certificate(front, "forged", "printer-7", other_ca)
    names = write(front.file("names"), "# name role\nprinter-7 gw_one\n")
    mapped = certificate(front, "mapped", "printer-7", ca)
    front.gateway("--grpc", "127.0.0.1:0", "--tls-cert", server[0], "--tls-key", server[1], "--client-ca", ca[0], "--client-roles", names, "--auth", tokens_file(front, ["gw_two"]))
    front.query("SELECT tq_create_queue('c'), tq_grant('c', 'gw_one', 'produce'), tq_grant('c', 'gw_two', 'consume')")

    def context(of=None):
        made = ssl._create_unverified_context()  # pylint: disable=protected-access
        if of:
            made.load_cert_chain(*of)
        return made

    enqueue = lambda of=None, **more: front.post("/v1/jobs", {"queue": "c"}, tls_context=context(of), **more).status
    front.same(enqueue(mapped), 201, "a certificate whose name has a role")
    front.same((enqueue(unknown), enqueue(spaced), enqueue()), (401, 401, 401), "others, and none")
    front.same(enqueue(headers=bearer(token_of("gw_two"))), 403, "a token does without a certificate")
    front.same(enqueue(mapped, headers=bearer("wrong")), 201, "a certificate counts first")
    try:
        front.say(enqueue(forged) == 0, "a certificate of another CA", "it was answered")
    except (ssl.SSLError, ConnectionError):
        front.say(True, "a certificate of another CA", "")
    shared = context(mapped)
    front.same([front.post("/v1/jobs", {"queue": "c"}, tls_context=shared).status for _ in range(3)], [201] * 3, "sessions that are taken up again")

    def over_grpc(of, token=None):
        read = lambda path: open(path, "rb").read()  # pylint: disable=consider-using-with,unspecified-encoding
        credentials = grpc.ssl_channel_credentials(read(ca[0]), *((read(of[1]), read(of[0])) if of else ()))
        try:
            return Caller(front, token=token, credentials=credentials).enqueue("c").id > 0
        except grpc.RpcError as error:
            return error.code().name

    front.same((over_grpc(mapped), over_grpc(unknown), over_grpc(None), over_grpc(None, token_of("gw_two"))), (True, "UNAUTHENTICATED", "UNAUTHENTICATED", "PERMISSION_DENIED"),
               "the same over gRPC")


def case_certificates_change(front):
    cas = certificate(front, "ca", "our CA"), certificate(front, "other", "another CA")
    old, new = (certificate(front, "server", "localhost", ca) for ca in cas)
    process = front.gateway("--grpc", "127.0.0.1:0", "--tls-cert", old[0], "--tls-key", old[1])

    def channel(ca):
        with open(ca[0], "rb") as file:
            return grpc.secure_channel(f"localhost:{front.grpc_port}", grpc.ssl_channel_credentials(file.read()), [("grpc.use_local_subchannel_pool", 1)])

    def answers(channel):
        try:
            return channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=PATIENCE) == b"\x08\x01"
        except grpc.RpcError:
            return False

    def known():
        return [answers(channel(ca)) for ca in cas]

    held = channel(cas[0])
    front.same((answers(held), known()), (True, [True, False]), "gRPC has the certificate of the file")
    for path, other in zip(old, new):
        os.replace(other, path)
    process.send_signal(signal.SIGHUP)
    front.until(lambda: known() == [False, True], "it is read again")
    front.say(answers(held), "... and an open connection goes on", "it does not answer")
    write(old[0], "nonsense")
    process.send_signal(signal.SIGHUP)
    front.logged(process, "kept")
    front.same(known(), [False, True], "a file that cannot be read changes nothing")
