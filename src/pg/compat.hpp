// The only place that knows PostgreSQL's versions (15 to 18).
#pragma once

#if PG_VERSION_NUM < 150000 || PG_VERSION_NUM >= 190000
#error "tq supports PostgreSQL 15 to 18"
#endif

#if PG_VERSION_NUM < 160000
using RelFileNumber = Oid;
#endif
