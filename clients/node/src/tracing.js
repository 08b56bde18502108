// Spans, if @opentelemetry/api is installed, and the W3C header `traceparent`, which carries them from the enqueue to the
// run. Without OpenTelemetry nothing is added.
import { load } from './optional.js';

const api = load('@opentelemetry/api');
const TRACEPARENT = /^[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})$/;

const attributes = (operation, queue) => ({
	'messaging.system': 'tq', 'messaging.operation.type': operation, 'messaging.destination.name': queue,
});

/** Runs `body` with a span; an error is recorded in it and thrown on. */
async function spanned(name, options, parent, body) {
	return api.trace.getTracer('tq').startActiveSpan(name, options, parent, async (span) => {
		try {
			return await body(span);
		} catch (error) {
			span.recordException(error);
			span.setStatus({ code: api.SpanStatusCode.ERROR, message: error?.message });
			throw error;
		} finally {
			span.end();
		}
	});
}

/**
 * Sends a request with a span whose context goes into the headers of its jobs, unless they have a traceparent.
 * @param {any} request of a middleware
 * @param {(request: any) => Promise<any>} next
 */
export function sending(request, next) {
	if (!api)
		return next(request);
	const options = { kind: api.SpanKind.PRODUCER, attributes: attributes('send', request.queue) };
	return spanned(`send ${request.queue}`, options, api.context.active(), async (span) => {
		const context = span.spanContext();
		const { headers } = request.options;
		if (api.isSpanContextValid(context) && headers?.traceparent === undefined)
			request.options.headers = { ...headers,
				traceparent: `00-${context.traceId}-${context.spanId}-${context.traceFlags.toString(16).padStart(2, '0')}` };
		const ids = await next(request);
		if (typeof ids === 'number')
			span.setAttribute('messaging.message.id', String(ids));
		return ids;
	});
}

/**
 * Runs `body` in a span that continues the trace of the job's enqueue.
 * @param {import('./job.js').Job} job
 * @param {() => Promise<any>} body
 */
export function processing(job, body) {
	if (!api)
		return body();
	const [, traceId, spanId, flags] = TRACEPARENT.exec(job.headers?.traceparent ?? '') ?? [];
	const parent = traceId === undefined ? api.ROOT_CONTEXT
		: api.trace.setSpanContext(api.ROOT_CONTEXT, { traceId, spanId, traceFlags: parseInt(flags, 16), isRemote: true });
	const options = { kind: api.SpanKind.CONSUMER,
		attributes: { ...attributes('process', job.queue), 'messaging.message.id': String(job.id),
			'tq.kind': job.kind ?? '', 'tq.attempt': job.attempt } };
	return spanned(`process ${job.queue}`, options, parent, body);
}
