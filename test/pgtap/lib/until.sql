-- Polls until a query says true, or gives up.
CREATE PROCEDURE until(query text) LANGUAGE plpgsql AS $$
DECLARE
	done boolean := false;
BEGIN
	FOR i IN 1 .. 18000 LOOP
		EXECUTE query INTO done;
		COMMIT;
		EXIT WHEN done;
		PERFORM pg_sleep(0.01); -- poll
	END LOOP;
	IF done IS NOT TRUE THEN
		RAISE 'never came true: %', query;
	END IF;
END
$$;
