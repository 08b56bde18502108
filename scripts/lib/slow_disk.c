/*
 * A slow disk: preloaded into a server, it delays fsync and fdatasync by TQ_FSYNC_MS milliseconds.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

typedef int (*flush)(int);

static int
later(const char *name, int fd)
{
	const char *set = getenv("TQ_FSYNC_MS");
	long		ms = set ? atol(set) : 0;
	const struct timespec flush_time = {ms / 1000, ms % 1000 * 1000000};
	flush		real = (flush) dlsym(RTLD_NEXT, name);

	nanosleep(&flush_time, NULL);
	return real(fd);
}

int
fsync(int fd)
{
	return later("fsync", fd);
}

int
fdatasync(int fd)
{
	return later("fdatasync", fd);
}
