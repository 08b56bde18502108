import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import test from 'node:test';
import { promisify } from 'node:util';

test('a CommonJS program requires the package, and gets the classes that an ES module imports', async () => {
	const { stdout, stderr } = await promisify(execFile)(process.execPath, ['required.cjs']);
	assert.deepEqual([stdout, stderr], ['function true true\n', '']);
});

test('the package asks for a Node that can require ES modules', () => {
	assert.equal(JSON.parse(readFileSync('node_modules/tq/package.json', 'utf8')).engines.node, '^20.19.0 || >=22.12.0');
});
