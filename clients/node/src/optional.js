// Packages that the application installs. A package linked from another folder does not find them from its own place,
// so they are also looked for from the application's.
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

/** @param {string} name @returns {any} its exports; null if it is not installed */
export function load(name) {
	for (const from of [import.meta.url, pathToFileURL(process.argv[1] ?? join(process.cwd(), 'x')).href,
		pathToFileURL(join(process.cwd(), 'x')).href]) {
		const require = createRequire(from);
		let path;
		try {
			path = require.resolve(name);
		} catch (error) {
			if (error.code !== 'MODULE_NOT_FOUND')
				throw error;
			continue;
		}
		return require(path);
	}
	return null;
}
