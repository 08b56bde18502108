// Makes the databases of the tests.
import pg from 'pg';

const server = new pg.Client({ database: 'postgres' });
await server.connect();
for (const [name, settings, version] of [['node', []], ['node_clock', ['tq.testing = on']], ['node_chaos', []],
	['node_old', [], '0.1.0']]) {
	await server.query(`DROP DATABASE IF EXISTS ${name} WITH (FORCE)`);
	await server.query(`CREATE DATABASE ${name}`);
	for (const setting of settings)
		await server.query(`ALTER DATABASE ${name} SET ${setting}`);
	const client = new pg.Client({ database: name });
	await client.connect();
	await client.query(`CREATE EXTENSION tq ${version ? `VERSION '${version}'` : ''}`);
	await client.end();
}
await server.end();
