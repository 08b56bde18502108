-- Claims a job, completes it, and so on. One connection for each thread, which has variables of its own.
local headers = { ["Content-Type"] = "application/json" }
local lease

function request()
	if lease then
		return wrk.format("POST", "/v1/leases/" .. lease .. ":complete", headers, "{}")
	end
	return wrk.format("POST", "/v1/queues/bench:claim", headers, "{}")
end

function response(status, _, body)
	lease = not lease and body:match('"lease":"([^"]+)"') or nil
end
