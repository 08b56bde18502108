SELECT id, lease, payload FROM tq_claim('bench') \gset
SELECT id, lease, payload FROM tq_claim_next('bench', ARRAY[:id::bigint], ARRAY[:lease::bigint]) \gset
SELECT id, lease, payload FROM tq_claim_next('bench', ARRAY[:id::bigint], ARRAY[:lease::bigint]) \gset
SELECT id, lease, payload FROM tq_claim_next('bench', ARRAY[:id::bigint], ARRAY[:lease::bigint]) \gset
SELECT id, lease, payload FROM tq_claim_next('bench', ARRAY[:id::bigint], ARRAY[:lease::bigint]) \gset
SELECT id, lease, payload FROM tq_claim_next('bench', ARRAY[:id::bigint], ARRAY[:lease::bigint]) \gset
SELECT id, lease, payload FROM tq_claim_next('bench', ARRAY[:id::bigint], ARRAY[:lease::bigint]) \gset
SELECT id, lease, payload FROM tq_claim_next('bench', ARRAY[:id::bigint], ARRAY[:lease::bigint]) \gset
SELECT id, lease, payload FROM tq_claim_next('bench', ARRAY[:id::bigint], ARRAY[:lease::bigint]) \gset
SELECT id, lease, payload FROM tq_claim_next('bench', ARRAY[:id::bigint], ARRAY[:lease::bigint]) \gset
SELECT tq_complete(:id, :lease);
