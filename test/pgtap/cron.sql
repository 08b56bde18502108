-- tq_schedule_next: cron expressions in time zones, compared with a table of known clock changes; its errors.
SET client_min_messages = warning;
SET timezone = 'UTC';

SELECT * FROM no_plan();

-- The same with a given start (only in test builds).
CREATE FUNCTION fires(cron text, timezone text, n int, start timestamptz) RETURNS SETOF timestamptz
	LANGUAGE c AS '$libdir/tq', 'tq_test_schedule_next';

-- ---- known changes, all times in UTC

CREATE TABLE known (n int GENERATED ALWAYS AS IDENTITY, zone text, cron text, start timestamp, wanted timestamp[], why text);

-- 2024-03-31 01:00: 02:00 becomes 03:00
INSERT INTO known (zone, cron, start, wanted, why) VALUES
	('Europe/Berlin', '30 2 * * *', '2024-03-30 12:00', '{2024-03-31 01:00,2024-04-01 00:30}', 'skipped: at the end of the gap'),
	('Europe/Berlin', '0 2 * * *', '2024-03-30 12:00', '{2024-03-31 01:00,2024-04-01 00:00}', 'the first time of the gap'),
	('Europe/Berlin', '0 3 * * *', '2024-03-30 12:00', '{2024-03-31 01:00,2024-04-01 01:00}', 'the first time after it'),
	('Europe/Berlin', '*/15 2 * * *', '2024-03-30 12:00', '{2024-03-31 01:00,2024-04-01 00:00,2024-04-01 00:15}', 'four skipped times are one'),
	('Europe/Berlin', '30 1-3 * * *', '2024-03-30 12:00', '{2024-03-31 00:30,2024-03-31 01:00,2024-03-31 01:30}', 'before, in and after the gap'),
	('Europe/Berlin', '30 2 31 3 *', '2024-01-01 00:00', '{2024-03-31 01:00,2025-03-31 00:30}', 'on that day only'),
	('Europe/Berlin', '30 * * * *', '2024-03-31 00:00', '{2024-03-31 00:30,2024-03-31 01:30,2024-03-31 02:30}', 'every hour goes through'),
	('Europe/Berlin', '0 */2 * * *', '2024-03-30 22:30', '{2024-03-30 23:00,2024-03-31 02:00,2024-03-31 04:00}', 'an hour that is not there'),
	('Europe/Berlin', '59 59 1 * * *', '2024-03-30 12:00', '{2024-03-31 00:59:59,2024-03-31 23:59:59}', 'the last second before'),
	('Europe/Berlin', '*/20 * * * * *', '2024-03-31 00:59:30', '{2024-03-31 00:59:40,2024-03-31 01:00:00,2024-03-31 01:00:20}', 'seconds across it');
-- 2024-10-27 01:00: 03:00 becomes 02:00
INSERT INTO known (zone, cron, start, wanted, why) VALUES
	('Europe/Berlin', '30 2 * * *', '2024-10-26 12:00', '{2024-10-27 00:30,2024-10-28 01:30}', 'repeated: the first time'),
	('Europe/Berlin', '30 2 * * *', '2024-10-27 00:45', '{2024-10-28 01:30}', 'from between the two'),
	('Europe/Berlin', '30 2 * * *', '2024-10-27 01:10', '{2024-10-28 01:30}', 'from within the second hour'),
	('Europe/Berlin', '0 2 * * *', '2024-10-26 12:00', '{2024-10-27 00:00,2024-10-28 01:00}', 'its first minute'),
	('Europe/Berlin', '0 3 * * *', '2024-10-26 12:00', '{2024-10-27 02:00,2024-10-28 02:00}', 'the first time after it'),
	('Europe/Berlin', '*/30 2 * * *', '2024-10-26 12:00', '{2024-10-27 00:00,2024-10-27 00:30,2024-10-28 01:00}', 'not all over again'),
	('Europe/Berlin', '30 1-3 * * *', '2024-10-26 22:00', '{2024-10-26 23:30,2024-10-27 00:30,2024-10-27 02:30}', 'before, in and after'),
	('Europe/Berlin', '30 * * * *', '2024-10-27 00:00', '{2024-10-27 00:30,2024-10-27 01:30,2024-10-27 02:30}', 'every hour goes through'),
	('Europe/Berlin', '30 0-23 * * *', '2024-10-27 00:00', '{2024-10-27 00:30,2024-10-27 01:30,2024-10-27 02:30}', '... also by their names'),
	('Europe/Berlin', '0 */2 * * *', '2024-10-26 23:00', '{2024-10-27 00:00,2024-10-27 01:00,2024-10-27 03:00}', 'an hour that is there twice'),
	('Europe/Berlin', '*/20 * * * *', '2024-10-27 00:30', '{2024-10-27 00:40,2024-10-27 01:00,2024-10-27 01:20}', 'minutes across it');
-- 2024-03-10 07:00 and 2024-11-03 06:00
INSERT INTO known (zone, cron, start, wanted, why) VALUES
	('America/New_York', '30 2 * * *', '2024-03-09 12:00', '{2024-03-10 07:00,2024-03-11 06:30}', 'skipped'),
	('America/New_York', '0 9 * * MON-FRI', '2024-03-08 12:00', '{2024-03-08 14:00,2024-03-11 13:00,2024-03-12 13:00}', 'nine o''clock, whatever the offset'),
	('America/New_York', '30 1 * * *', '2024-11-02 12:00', '{2024-11-03 05:30,2024-11-04 06:30}', 'repeated'),
	('America/New_York', '15 * * * *', '2024-11-03 05:00', '{2024-11-03 05:15,2024-11-03 06:15,2024-11-03 07:15}', 'every hour'),
	('america/new_york', '@daily', '2024-11-02 12:00', '{2024-11-03 04:00,2024-11-04 05:00}', 'a day of 25 hours; the name in any case');
-- by half an hour: 2024-10-05 15:30, 02:00 becomes 02:30; 2024-04-06 15:00, 02:00 becomes 01:30
INSERT INTO known (zone, cron, start, wanted, why) VALUES
	('Australia/Lord_Howe', '15 2 * * *', '2024-10-05 00:00', '{2024-10-05 15:30,2024-10-06 15:15}', 'skipped'),
	('Australia/Lord_Howe', '45 2 * * *', '2024-10-05 00:00', '{2024-10-05 15:45,2024-10-06 15:45}', 'not skipped'),
	('Australia/Lord_Howe', '0 * * * *', '2024-10-05 14:00', '{2024-10-05 14:30,2024-10-05 16:00,2024-10-05 17:00}', 'there is no 02:00'),
	('Australia/Lord_Howe', '*/10 * * * *', '2024-10-05 15:15', '{2024-10-05 15:20,2024-10-05 15:30,2024-10-05 15:40}', 'ten minutes go through'),
	('Australia/Lord_Howe', '45 1 * * *', '2024-04-06 00:00', '{2024-04-06 14:45,2024-04-07 15:15}', 'repeated'),
	('Australia/Lord_Howe', '45 * * * *', '2024-04-06 14:00', '{2024-04-06 14:45,2024-04-06 15:15,2024-04-06 16:15}', 'every hour'),
	('Australia/Lord_Howe', '0 2 * * *', '2024-04-06 00:00', '{2024-04-06 15:30,2024-04-07 15:30}', 'the end of the repeated half hour');
-- by a quarter, at midnight, once and for all: 1985-12-31 18:30
INSERT INTO known (zone, cron, start, wanted, why) VALUES
	('Asia/Kathmandu', '@daily', '1985-12-30 00:00', '{1985-12-30 18:30,1985-12-31 18:30,1986-01-01 18:15}', 'midnight is skipped'),
	('Asia/Kathmandu', '10 0 * * *', '1985-12-31 00:00', '{1985-12-31 18:30,1986-01-01 18:25}', 'skipped'),
	('Asia/Kathmandu', '20 0 * * *', '1985-12-31 00:00', '{1985-12-31 18:35,1986-01-01 18:35}', 'not skipped'),
	('Asia/Kathmandu', '0 9 * * *', '2024-01-01 00:00', '{2024-01-01 03:15,2024-01-02 03:15}', 'an offset with minutes');
-- by a day: 2011-12-30 10:00, there is no 30th of December
INSERT INTO known (zone, cron, start, wanted, why) VALUES
	('Pacific/Apia', '0 12 * * *', '2011-12-29 12:00', '{2011-12-29 22:00,2011-12-30 10:00,2011-12-30 22:00}', 'a noon is skipped'),
	('Pacific/Apia', '@daily', '2011-12-29 00:00', '{2011-12-29 10:00,2011-12-30 10:00,2011-12-31 10:00}', 'two midnights are one'),
	('Pacific/Apia', '0 8 30 * *', '2011-12-01 00:00', '{2011-12-30 10:00,2012-01-29 18:00}', 'the 30th'),
	('Pacific/Apia', '0 0 L * *', '2011-12-01 00:00', '{2011-12-30 10:00,2012-01-30 10:00}', 'the last'),
	('Pacific/Apia', '0 0 * * FRI', '2011-12-23 12:00', '{2011-12-30 10:00,2012-01-05 10:00}', 'a Friday'),
	('Pacific/Apia', '0 */6 * * *', '2011-12-30 02:00', '{2011-12-30 04:00,2011-12-30 10:00,2011-12-30 16:00}', 'every six hours');
-- at midnight: 2018-11-04 03:00, 00:00 becomes 01:00; 2018-02-18 02:00, 00:00 becomes 23:00 of the day before
INSERT INTO known (zone, cron, start, wanted, why) VALUES
	('America/Sao_Paulo', '@daily', '2018-11-03 12:00', '{2018-11-04 03:00,2018-11-05 02:00}', 'midnight is skipped'),
	('America/Sao_Paulo', '@daily', '2018-02-17 12:00', '{2018-02-18 03:00,2018-02-19 03:00}', 'midnight comes after all'),
	('America/Sao_Paulo', '30 23 * * *', '2018-02-17 12:00', '{2018-02-18 01:30,2018-02-19 02:30}', 'half past eleven comes twice');
-- no change, and long after the last one that the database lists
INSERT INTO known (zone, cron, start, wanted, why) VALUES
	('UTC', '0 0 29 2 *', '2023-01-01 00:00', '{2024-02-29 00:00,2028-02-29 00:00}', 'leap years'),
	('Etc/GMT+5', '@daily', '2024-01-01 00:00', '{2024-01-01 05:00,2024-01-02 05:00}', 'a fixed offset'),
	('Europe/Berlin', '30 2 * * *', '2100-03-27 12:00', '{2100-03-28 01:00,2100-03-29 00:30}', 'in a far future');

SELECT is((SELECT array_agg(f AT TIME ZONE 'UTC') FROM fires(cron, zone, cardinality(wanted), start AT TIME ZONE 'UTC') f), wanted,
	format('%s, %s from %s: %s', zone, cron, start, why)) FROM known ORDER BY n;
-- each time alone, starting from the one before
SELECT is((SELECT f AT TIME ZONE 'UTC' FROM fires(cron, zone, 1, wanted[i] AT TIME ZONE 'UTC') f), wanted[i + 1], format('%s, %s from %s', zone, cron, wanted[i]))
	FROM known, generate_series(1, cardinality(wanted) - 1) i ORDER BY n, i;
SELECT is((SELECT f AT TIME ZONE 'UTC' FROM fires(cron, zone, 1, (w - interval '1 us') AT TIME ZONE 'UTC') f), w, format('%s, %s right before %s', zone, cron, w))
	FROM known, unnest(wanted) w ORDER BY n, w;

-- Every zone, two years: once for each day that has this time; on other days when the clock skips it.
CREATE TABLE daily AS
	SELECT z.name, f, f AT TIME ZONE z.name AS local FROM pg_timezone_names z, fires('30 2 * * *', z.name, 730, '2020-12-31 12:00') f
	WHERE z.name !~ '^(posix|right)/' AND z.name NOT IN ('posixrules', 'localtime', 'Factory')
		AND z.name NOT IN (SELECT abbrev FROM pg_timezone_abbrevs); -- AT TIME ZONE would read these as abbreviations
SELECT ok(count(DISTINCT name) > 300, 'many zones') FROM daily;
SELECT is((SELECT string_agg(DISTINCT name, ' ') FROM daily WHERE local::time <> '02:30' AND (local::date + time '02:30') AT TIME ZONE name AT TIME ZONE name
	= local::date + time '02:30'), NULL, 'at 02:30 wherever there is one');
SELECT is((SELECT string_agg(DISTINCT name, ' ') FROM (SELECT name, local::date - lag(local::date) OVER (PARTITION BY name ORDER BY f) AS days FROM daily) d
	WHERE days <> 1), NULL, 'on every day');

-- ---- the function

SELECT is((SELECT count(*) FROM tq_schedule_next('* * * * *')), 5::bigint, 'five by default');
SELECT is((SELECT count(*) FROM tq_schedule_next('* * * * * *', n => 1000)), 1000::bigint, 'a thousand at most');
SELECT is((SELECT count(*) FROM tq_schedule_next('@hourly', NULL, NULL)), 5::bigint, 'nulls are the defaults');
SELECT ok(min(f) > now() AND max(f) <= clock_timestamp() + interval '2 min' AND bool_and(extract(second FROM f) = 0), 'from now on')
	FROM tq_schedule_next('* * * * *', 'Europe/Berlin', 2) f;
SELECT is((SELECT count(*) FROM (SELECT tq_schedule_next('@daily') LIMIT 2) s), 2::bigint, 'among the columns');
SELECT is((SELECT count(*) FROM fires('* * * * *', 'Europe/Berlin', 5, '294276-12-31 23:57 UTC')), 2::bigint, 'up to the end of time');
BEGIN READ ONLY;
SELECT is((SELECT count(*) FROM tq_schedule_next('@daily')), 5::bigint, 'in a read-only transaction');
COMMIT;

-- ---- errors

CREATE FUNCTION complaint(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	detail text;
BEGIN
	EXECUTE statement;
	RETURN 'none';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
	RETURN concat_ws(': ', sqlstate, sqlerrm, nullif(detail, ''));
END
$$;
SELECT is(complaint(format('SELECT tq_schedule_next(%L)', cron)), format('22023: cron expression "%s" is not valid: %s', cron, detail),
		format('the error of cron expression "%s" names the position', left(cron, 40)))
	FROM (VALUES
		('* * * *', 'At position 8: There must be five fields (minute, hour, day of month, month, day of week), or six with the second first.'),
		('é * * * * * *', 'At position 13: There must be five fields (minute, hour, day of month, month, day of week), or six with the second first.'),
		('@often', 'At position 1: Known are @yearly, @annually, @monthly, @weekly, @daily, @midnight and @hourly.'),
		('60 * * * *', 'In the field minute, at position 1: Minutes are 0 to 59.'),
		('0 60 * * * *', 'In the field minute, at position 3: Minutes are 0 to 59.'),
		('60 0 * * * *', 'In the field second, at position 1: Seconds are 0 to 59.'),
		('0 8,25 * * *', 'In the field hour, at position 5: Hours are 0 to 23.'),
		('0 0 0 * *', 'In the field day of month, at position 5: Days of the month are 1 to 31, or L for the last one.'),
		('0 0 15W * *', 'In the field day of month, at position 7: W (the weekday nearest to a day) is not supported.'),
		('0 0 30 2 *', 'In the field day of month, at position 5: No such day ever comes in the months given.'),
		('0 0 * FEV *', 'In the field month, at position 7: Months are 1 to 12, or JAN to DEC.'),
		('0 0 * * FRI#6', 'In the field day of week, at position 13: After # comes which one of the month it is, 1 to 5.'),
		('*/0 * * * *', 'In the field minute, at position 3: A step of minutes is 1 to 59.')
	) e (cron, detail);
SELECT is(complaint(format('SELECT tq_schedule_next(%L, %L)', '@daily', zone)), format('22023: time zone "%s" does not exist: %s', zone, detail),
		format('time zone "%s" is refused', zone))
	FROM (VALUES ('Europe/Berln', 'There is no such name in the time zone database.'),
		('', 'There is no such name in the time zone database.'),
		('CEST', 'There is no such name in the time zone database.'),
		('../Europe/Berlin', 'There is no such name in the time zone database.'),
		('Europe/Berlin2', 'There is no such name in the time zone database, and rules in POSIX notation are not taken.'),
		('CET-1CEST', 'There is no such name in the time zone database, and rules in POSIX notation are not taken.'),
		('+02', 'There is no such name in the time zone database, and rules in POSIX notation are not taken.')
	) e (zone, detail);
SELECT is(complaint('SELECT tq_schedule_next(NULL)'), '22004: cron must not be null', 'a null cron expression is refused');
SELECT is(complaint(format('SELECT tq_schedule_next(%L, n => %s)', '@daily', n)), format('22023: n is out of range: %s: It must be between 1 and 1000.', n),
		format('n => %s is refused', n))
	FROM unnest('{0,-1,1001}'::int[]) n;

SELECT * FROM finish();
