// A CommonJS program.
const tq = require('tq');
const testing = require('tq/testing');

import('tq').then((imported) => {
	console.log(typeof testing.drain, new tq.Worker({ queues: ['q'] }) instanceof imported.Worker, imported.Retry === tq.Retry);
});
