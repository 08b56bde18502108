#include "shmem/series.hpp"

#include "guc.hpp"

extern "C"
{
#include "storage/fd.h"
}

namespace tq
{

core::Series series;

namespace
{

constexpr const char *kTranche = "tq series";
constexpr const char *kFile = PGSTAT_STAT_PERMANENT_DIRECTORY "/tq_series.stat";
constexpr const char *kNewFile = PGSTAT_STAT_PERMANENT_DIRECTORY "/tq_series.stat.tmp";

// Before the pages in the file. Another version or build has other pages, so its file is ignored.
struct FileHeader
{
	uint32 magic = 0x74715301;
	uint32 page_size = sizeof(core::SeriesPage);
};

LWLock *lock = nullptr;

uint32 page_count()
{
	return static_cast<uint32>(static_cast<Size>(guc::series_memory) * 1024 / sizeof(core::SeriesPage));
}

Size size() { return core::Series::size(static_cast<uint32>(guc::max_queues), page_count()); }

// At the postmaster's exit. No process uses the pages any more.
void save(int code, Datum)
{
	if (code != 0)
		return;
	FILE *file = AllocateFile(kNewFile, PG_BINARY_W);
	bool good = file != nullptr;
	if (good)
	{
		const FileHeader header;
		good = fwrite(&header, sizeof(header), 1, file) == 1;
		series.visit_pages([&good, file](const core::SeriesPage &p) {
			good = good && fwrite(&p, sizeof(p), 1, file) == 1;
		});
		good = FreeFile(file) == 0 && good;
	}
	if (good)
		static_cast<void>(durable_rename(kNewFile, kFile, LOG));
	else
	{
		ereport(LOG, (errcode_for_file_access(), errmsg("tq: could not write file \"%s\": %m", kNewFile)));
		static_cast<void>(unlink(kNewFile));
	}
}

// At the postmaster's start. Reads the file and removes it, so that a crash does not bring old counts back.
void load()
{
	FILE *file = AllocateFile(kFile, PG_BINARY_R);
	if (file == nullptr)
	{
		if (errno != ENOENT)
			ereport(LOG, (errcode_for_file_access(), errmsg("tq: could not read file \"%s\": %m", kFile)));
		return;
	}
	FileHeader header;
	const FileHeader expected;
	if (fread(&header, sizeof(header), 1, file) == 1 && header.magic == expected.magic &&
		header.page_size == expected.page_size)
	{
		static core::SeriesPage page;
		while (fread(&page, sizeof(page), 1, file) == 1)
			series.restore(page);
	}
	static_cast<void>(FreeFile(file));
	static_cast<void>(unlink(kFile));
}

} // namespace

LWLock *series_lock() noexcept { return lock; }

void request_series()
{
	RequestAddinShmemSpace(size());
	RequestNamedLWLockTranche(kTranche, 1);
}

void init_series()
{
	bool found = false;
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	void *memory = ShmemInitStruct("tq series", size(), &found);
	lock = &GetNamedLWLockTranche(kTranche)->lock;
	if (found)
		series.attach(memory);
	else
		series.create(memory, static_cast<uint32>(guc::max_queues), page_count());
	LWLockRelease(AddinShmemInitLock);
	if (!IsUnderPostmaster)
	{
		on_shmem_exit(save, static_cast<Datum>(0));
		if (!found)
			load();
	}
}

} // namespace tq
