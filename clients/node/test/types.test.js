import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import test from 'node:test';
import { promisify } from 'node:util';
import * as tq from 'tq';
import * as testing from 'tq/testing';

test('the types are those that a strict program in TypeScript expects', async () => {
	const { stdout } = await promisify(execFile)(process.execPath, ['node_modules/typescript/bin/tsc', '--noEmit', '--strict',
		'--noUnusedLocals', '--module', 'nodenext', '--target', 'es2022', '--types', 'node', '--preserveSymlinks', 'types.ts', 'types.cts']).catch((error) => error);
	assert.equal(stdout, '');
});

test('everything that the package exports has a type, and the other way round', () => {
	const internal = ['classes', 'sqlstate', 'typed', 'isConnectionLost', 'signatures'];
	for (const [module, name] of [[tq, 'index'], [testing, 'testing']]) {
		const text = readFileSync(`node_modules/tq/types/${name}.d.ts`, 'utf8');
		const typed = [...text.matchAll(/^export (?:class|function|const) (\w+)/gm)].map(([, one]) => one);
		assert.deepEqual([...new Set(typed)].sort(), Object.keys(module).filter((one) => !internal.includes(one)).sort());
	}
});
