// A line for each test: "ok - name" or "not ok - name", and for a failure the error.
import { inspect } from 'node:util';

export default async function* reporter(source) {
	for await (const { type, data } of source) {
		if (type === 'test:pass' && data.details?.type !== 'suite')
			yield `ok - ${data.name}${data.skip === undefined ? '' : ` # SKIP ${data.skip}`}\n`;
		else if (type === 'test:fail')
			yield `not ok - ${data.name}\n${inspect(data.details.error, { depth: 4 }).replace(/^/gm, '# ')}\n`;
		else if (type === 'test:stderr' || type === 'test:stdout')
			yield data.message.replace(/^(?=.)/gm, '# ');
	}
}
