#include "pg/data_error.hpp"

namespace tq::pg
{

ErrorData *take_data_error(MemoryContext context)
{
	MemoryContextSwitchTo(context);
	ErrorData *e = CopyErrorData();
	FlushErrorState();
	const int category = ERRCODE_TO_CATEGORY(e->sqlerrcode);
	if (category != ERRCODE_DATA_EXCEPTION && category != ERRCODE_FEATURE_NOT_SUPPORTED)
		ReThrowError(e);
	return e;
}

} // namespace tq::pg
