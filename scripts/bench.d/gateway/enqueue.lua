-- Enqueues a job with each request.
wrk.method = "POST"
wrk.path = "/v1/jobs"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"queue": "bench", "payload": ' .. os.getenv("PAYLOAD") .. '}'
