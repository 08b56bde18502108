import assert from 'node:assert/strict';
import test from 'node:test';
import { context, SpanKind, trace } from '@opentelemetry/api';
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks';
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-base';
import * as tq from 'tq';
import { connect, state, until, worker } from './harness.js';

const exporter = new InMemorySpanExporter();
context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
trace.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] }));
const client = await connect();

test('spans of enqueue and run are of one trace, which the headers carry', async () => {
	const one = worker({ queues: ['traced'] }).handle('ok', () => trace.getTracer('app').startActiveSpan('inner', (span) => span.end()))
		.handle('bad', () => { throw new tq.Fatal('no'); });
	await one.start();
	const id = await trace.getTracer('app').startActiveSpan('request', async (span) => {
		const found = await tq.enqueue(client, 'traced', 1, { kind: 'ok', headers: { mine: 1 } });
		span.end();
		return found;
	});
	const { headers } = await state(client, id, 'succeeded');
	const bad = await tq.enqueue(client, 'traced', 1, { kind: 'bad' });
	await state(client, bad, 'dead');
	const spans = await until(() => exporter.getFinishedSpans().length >= 6 && exporter.getFinishedSpans(), 'all spans');
	const [request, send, process, inner] = ['request', 'send traced', 'process traced', 'inner'].map(
		(name) => spans.find((span) => span.name === name));
	assert.deepEqual([send.kind, process.kind], [SpanKind.PRODUCER, SpanKind.CONSUMER]);
	for (const [span, parent] of [[send, request], [process, send], [inner, process]])
		assert.deepEqual([span.spanContext().traceId, span.parentSpanContext.spanId],
			[request.spanContext().traceId, parent.spanContext().spanId], span.name);
	assert.deepEqual(headers, { mine: 1, traceparent: `00-${send.spanContext().traceId}-${send.spanContext().spanId}-01` });
	assert.deepEqual([process.attributes['messaging.message.id'], process.attributes['messaging.destination.name'], process.attributes['tq.kind']],
		[String(id), 'traced', 'ok']);
	const failed = spans.find((span) => span.attributes['messaging.message.id'] === String(bad) && span.kind === SpanKind.CONSUMER);
	assert.deepEqual([failed.status.message, failed.events[0].name], ['no', 'exception']);
	assert.notEqual(failed.spanContext().traceId, request.spanContext().traceId);
	await one.stop();
});

test('a traceparent of the caller stays, and a malformed one begins a trace', async () => {
	const theirs = `00-${'a'.repeat(32)}-${'b'.repeat(16)}-01`;
	const one = worker({ queues: ['theirs'] }).handle(null, () => trace.getActiveSpan().spanContext().traceId);
	await one.start();
	const run = async (traceparent) => (await state(client, await tq.enqueue(client, 'theirs', 1, { headers: { traceparent } }), 'succeeded')).result;
	assert.equal(await run(theirs), 'a'.repeat(32));
	assert.match(await run('nonsense'), /^(?!a{32})[0-9a-f]{32}$/);
	await one.stop();
});
