#!/usr/bin/node
// A worker of tq over gRPC. It sends payloads back as results.
//
// usage: worker.js ADDRESS QUEUE      (ADDRESS as 127.0.0.1:8751; npm install before)
"use strict";

const path = require("path");
const grpc = require("@grpc/grpc-js");
const { loadSync } = require("@grpc/proto-loader");

const CONCURRENCY = 4;
const LEASE = 30; // seconds
const PROTO = process.env.TQ_PROTO ?? path.join(__dirname, "../../gateway/proto");

const { tq } = grpc.loadPackageDefinition(loadSync("tq/v1/tq.proto", { includeDirs: [PROTO], keepCase: true, longs: String, oneofs: true }));
const [address, queue] = process.argv.slice(2);
const client = new tq.v1.Queue(address, grpc.credentials.createInsecure());
const stream = client.work({ waitForReady: true });
const actions = new Map(); // the last action of each job in hand, by lease
let stopping = false;

// The work: returns a result as JSON. A long one looks at actions.get(job.lease) and stops at "cancel" and "lost".
async function handle(job) {
	console.log(job.id, job.payload);
	return job.payload;
}

async function work(job) {
	actions.set(job.lease, "run");
	stream.write({ started: job.lease });
	const beat = setInterval(() => stream.write({ heartbeat: { lease: job.lease } }), (LEASE * 1000) / 3);
	try {
		stream.write({ complete: { lease: job.lease, result: await handle(job) } });
	} catch (error) {
		stream.write({ fail: { lease: job.lease, error: String(error) } });
	}
	clearInterval(beat);
	actions.delete(job.lease);
	if (!stopping) stream.write({ credits: 1 });
}

stream.on("data", (message) => {
	if (message.job) work(message.job);
	else if (message.action && actions.has(message.action.lease)) actions.set(message.action.lease, message.action.action);
	else if (message.finished?.error) console.error(message.finished.error);
});
stream.on("error", (error) => {
	console.error(error.message);
	process.exitCode = 1;
});
stream.on("end", () => client.close());
stream.write({ hello: { worker: "grpc-node", queues: [queue], lease_for: `${LEASE} s` } });
stream.write({ credits: CONCURRENCY });

// No more jobs: those in hand are finished first.
for (const signal of ["SIGTERM", "SIGINT"])
	process.on(signal, () => {
		stopping = true;
		const poll = setInterval(() => {
			if (actions.size > 0) return;
			clearInterval(poll);
			stream.end();
		}, 50);
	});
