// Encrypted and signed payloads, results and checkpoints: the format of clients/README.md.
import { createCipheriv, createDecipheriv, createHmac, createSecretKey, randomBytes, timingSafeEqual } from 'node:crypto';

/** A value that cannot be decoded. Its message names the key and what was wrong, never a byte of the value. */
export class CodecError extends Error {
	constructor(message, options) {
		super(message, options);
		this.name = 'CodecError';
	}
}

/** The bytes of standard base64 with padding, or null. */
function base64(text) {
	if (typeof text !== 'string')
		return null;
	const bytes = Buffer.from(text, 'base64');
	return bytes.toString('base64') === text ? bytes : null;
}

export class Codec {
	#keys = new Map();

	/**
	 * @param {object} options
	 * @param {Record<string, Uint8Array | string>} options.keys by key id: 32 bytes, or these in base64
	 * @param {string} options.kid the key that encodes
	 * @param {'A256GCM' | 'HS256'} [options.alg] encrypts or signs
	 */
	constructor({ keys, kid, alg = 'A256GCM' }) {
		for (const [name, key] of Object.entries(keys)) {
			const bytes = typeof key === 'string' ? base64(key) : Buffer.from(key);
			if (bytes?.length !== 32)
				throw new TypeError(`key "${name}" must have 32 bytes, or these in base64`);
			this.#keys.set(name, createSecretKey(bytes));
		}
		if (!this.#keys.has(kid))
			throw new TypeError(`there is no key "${kid}"`);
		if (alg !== 'A256GCM' && alg !== 'HS256')
			throw new TypeError(`alg must be A256GCM or HS256: ${alg}`);
		this.kid = kid;
		this.alg = alg;
	}

	/**
	 * @param {string} text JSON
	 * @param {string} context such as "tq.v1:payload"
	 * @returns {object} the encoded value
	 */
	encode(text, context) {
		const key = this.#keys.get(this.kid);
		const head = { tq: 'v1', alg: this.alg, kid: this.kid };
		if (this.alg === 'HS256')
			return { ...head, text, mac: mac(key, context, text).toString('base64') };
		const iv = randomBytes(12);
		const cipher = createCipheriv('aes-256-gcm', key, iv).setAAD(Buffer.from(context));
		const ct = Buffer.concat([cipher.update(text, 'utf8'), cipher.final(), cipher.getAuthTag()]);
		return { ...head, iv: iv.toString('base64'), ct: ct.toString('base64') };
	}

	/**
	 * @param {any} value an encoded value, parsed
	 * @param {string} context that it was encoded with
	 * @returns {string} the text
	 * @throws {CodecError}
	 */
	decode(value, context) {
		if (!isEncoded(value))
			throw new CodecError('the value is not encoded');
		if (value.tq !== 'v1')
			throw new CodecError('the version of the encoding is unknown');
		if (typeof value.kid !== 'string')
			throw new CodecError('the value has no key id');
		const named = `key "${value.kid.slice(0, 64)}"`;
		const key = this.#keys.get(value.kid);
		if (!key)
			throw new CodecError(`${named} is unknown`);
		let text;
		if (value.alg === 'A256GCM')
			text = decrypted(key, value, context, named);
		else if (value.alg === 'HS256')
			text = checked(key, value, context, named);
		else
			throw new CodecError(`${named}: the algorithm is unknown`);
		try {
			JSON.parse(text);
		} catch {
			throw new CodecError(`${named}: the text is not JSON`);
		}
		return text;
	}
}

/** Does it claim to be an encoded value? @param {any} value */
function isEncoded(value) {
	return value !== null && typeof value === 'object' && !Array.isArray(value) && 'tq' in value && 'alg' in value;
}

const mac = (key, context, text) => createHmac('sha256', key).update(context).update('\0').update(text, 'utf8').digest();

function decrypted(key, { iv: ivText, ct: ctText }, context, named) {
	const iv = base64(ivText);
	const ct = base64(ctText);
	if (iv?.length !== 12 || ct === null || ct.length < 16)
		throw new CodecError(`${named}: iv or ct is malformed`);
	try {
		const decipher = createDecipheriv('aes-256-gcm', key, iv, { authTagLength: 16 })
			.setAAD(Buffer.from(context)).setAuthTag(ct.subarray(-16));
		return Buffer.concat([decipher.update(ct.subarray(0, -16)), decipher.final()]).toString('utf8');
	} catch {
		throw new CodecError(`${named}: the value was changed, or encrypted for something else`);
	}
}

function checked(key, { text, mac: macText }, context, named) {
	const given = base64(macText);
	if (typeof text !== 'string' || given?.length !== 32)
		throw new CodecError(`${named}: text or mac is malformed`);
	if (!timingSafeEqual(given, mac(key, context, text)))
		throw new CodecError(`${named}: the value was changed, or signed for something else`);
	return text;
}

/** @param {Codec} codec @returns {string} the JSON of the encoded value */
export const encoded = (codec, text, context) => JSON.stringify(codec.encode(text, context));

/**
 * @param {Codec | undefined} codec
 * @param {string} text JSON as the database has it
 * @param {boolean} acceptPlain whether a value that is not encoded is its own text
 * @returns {string}
 * @throws {CodecError}
 */
export function decoded(codec, text, context, acceptPlain) {
	if (!codec)
		return text;
	const value = JSON.parse(text);
	return acceptPlain && !isEncoded(value) ? text : codec.decode(value, context);
}
