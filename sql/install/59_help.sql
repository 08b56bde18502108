-- What tq_help prints. docs/reference.md is the source: sql/comments makes the rows when the extension is built, and
-- the end of this script writes them. pg_dump leaves them out.

CREATE TABLE tq.help (
	position int PRIMARY KEY,
	topic    text NOT NULL,
	name     text NOT NULL,                -- of a function, view or type
	summary  text NOT NULL,                -- also its comment
	details  text NOT NULL                 -- lines
);
REVOKE ALL ON TABLE tq.help FROM PUBLIC;

CREATE FUNCTION tq_help(name text DEFAULT NULL)
RETURNS SETOF text LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 80 AS 'MODULE_PATHNAME';
