// What the screens share: payloads keep their digits; hidden keys; changes of many jobs.
import assert from 'node:assert/strict';
import test from 'node:test';
import { buildSync } from 'esbuild';

const load = (name) => {
	const [{ text }] = buildSync({ entryPoints: [`../src/lib/${name}.ts`], bundle: true, format: 'esm', write: false }).outputFiles;
	return import(`data:text/javascript,${encodeURIComponent(text)}`);
};
const { elements, fault, members, pretty } = await load('json');
const { all } = await load('many');

test('members of an object are texts', () => {
	const text = '{"id": 5, "payload": {"n": 12345678901234567890.10, "s": "a \\"b\\", {c}: [", "l": [1, {"payload": 2}]}, "e": "", "z": null}';
	assert.deepEqual([...members(text)], [
		['id', '5'], ['payload', '{"n": 12345678901234567890.10, "s": "a \\"b\\", {c}: [", "l": [1, {"payload": 2}]}'], ['e', '""'], ['z', 'null'],
	]);
	assert.equal(members('{}').size, 0);
	assert.deepEqual([...members('{"": 1, "a": 2}')], [['', '1'], ['a', '2']]);
});

test('elements of an array are texts', () => {
	assert.deepEqual(elements(' [1.0, {"a": [1, 2]}, "x,]", [], null]'), ['1.0', '{"a": [1, 2]}', '"x,]"', '[]', 'null']);
	assert.deepEqual(elements('[]'), []);
});

test('a text over several lines keeps its digits', () => {
	assert.equal(pretty('{"a":1.000,"b":[],"c":[1,{"d":"x: {"}],"e":{}}'), '{\n  "a": 1.000,\n  "b": [],\n  "c": [\n    1,\n    {\n      "d": "x: {"\n    }\n  ],\n  "e": {}\n}');
	for (const one of ['null', '-1e400', '"x"', '[]'])
		assert.equal(pretty(one), one);
});

test('values of hidden keys are not shown, whatever they are', () => {
	const hidden = /^(password|token)$/i;
	const text = '{"password": "s3cret", "a": {"Token": {"x": ["s3cret", {"y": "s3cret"}]}, "b": 1}, "token": [], "l": [{"password": 5}, "token"], "z": 2}';
	const shown = pretty(text, hidden);
	assert.ok(!shown.includes('s3cret') && !shown.includes('5'), shown);
	assert.equal(shown, '{\n  "password": •••,\n  "a": {\n    "Token": •••,\n    "b": 1\n  },\n  "token": •••,\n  "l": [\n    {\n      "password": •••\n    },\n    "token"\n  ],\n  "z": 2\n}');
});

test('a long string', () => {
	const text = JSON.stringify({ s: 'x"\\'.repeat(3_000_000) });
	assert.equal(members(text).get('s').length, text.length - 6);
});

test('what is no JSON', () => {
	assert.equal(fault('{"a": 1}'), '');
	assert.notEqual(fault('{a: 1}'), '');
});

test('a search that is no JSON cannot add to a call', async () => {
	await assert.rejects(all('retry', { queue: 'mail', search: '{}, "with_children": true', dry_run: true }, () => true), SyntaxError);
});
