/*
 * A disk that takes 20 ms to flush: preloaded into a server, it delays fsync and fdatasync.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

typedef int (*flush)(int);

static int
later(const char *name, int fd)
{
	const struct timespec flush_time = {0, 20 * 1000 * 1000};
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
