#include "pg/wal.hpp"

extern "C"
{
#include "access/xlog_internal.h"
#include "common/controldata_utils.h"
}

namespace tq::pg
{

// The insert position of a new page is behind its header, which cannot be flushed before a record follows.
void flush_wal()
{
	XLogRecPtr end = GetXLogInsertRecPtr();
	if (XLogSegmentOffset(end, wal_segment_size) == SizeOfXLogLongPHD)
		end -= SizeOfXLogLongPHD;
	else if (end % XLOG_BLCKSZ == SizeOfXLogShortPHD)
		end -= SizeOfXLogShortPHD;
	XLogFlush(end);
}

void flush_sequence(Oid sequence)
{
	Relation rel = relation_open(sequence, NoLock);
	const Buffer buffer = ReadBuffer(rel, 0); // a sequence has one page
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	const XLogRecPtr last = PageGetLSN(BufferGetPage(buffer));
	UnlockReleaseBuffer(buffer);
	relation_close(rel, NoLock);
	XLogFlush(last); // returns at once if it is flushed
}

bool was_shut_down()
{
	bool sound = false;
	const ControlFileData *control = get_controlfile(DataDir, &sound);
	return sound && control->state == DB_SHUTDOWNED;
}

} // namespace tq::pg
