#include "shmem/versions.hpp"

#include "guc.hpp"
#include "pg/errors.hpp"

namespace tq
{

namespace
{

// The previous release; docs/releasing.md says when to change it.
constexpr const char *kPrevious = "0.1.0";

// Compares numerically; the version with fewer numbers comes first.
int compare(const char *a, const char *b) noexcept
{
	while (*a != '\0' && *b != '\0')
	{
		char *end_of_a = nullptr;
		char *end_of_b = nullptr;
		const long x = strtol(a, &end_of_a, 10);
		const long y = strtol(b, &end_of_b, 10);
		if (x != y)
			return x < y ? -1 : 1;
		if (end_of_a == a || end_of_b == b)
			return strcmp(a, b);
		a = *end_of_a == '.' ? end_of_a + 1 : end_of_a;
		b = *end_of_b == '.' ? end_of_b + 1 : end_of_b;
	}
	return (*a != '\0') - (*b != '\0');
}

bool pretends() noexcept
{
#ifdef TQ_TEST
	return guc::test_version != nullptr && guc::test_version[0] != '\0';
#else
	return false;
#endif
}

} // namespace

const char *library_version() noexcept
{
#ifdef TQ_TEST
	if (pretends())
		return guc::test_version;
#endif
	return TQ_VERSION;
}

Fit fit_of(const char *sql_version) noexcept
{
	if (strcmp(sql_version, library_version()) == 0)
		return Fit::same;
	if (!pretends() && strcmp(sql_version, kPrevious) == 0)
		return Fit::served;
	return compare(sql_version, library_version()) > 0 ? Fit::newer : Fit::older;
}

const char *hint_for(Fit fit) noexcept
{
	if (fit == Fit::newer)
		return "Install the library of that version, if it is not there yet, and restart the server.";
	return "Run ALTER EXTENSION tq UPDATE in this database.";
}

void refuse_version(const char *sql_version)
{
	ereport(
		ERROR,
		(errcode(kErrVersionMismatch),
		 errmsg(
			 "extension \"tq\" has version %s in this database, which the loaded library of version %s does not serve",
			 sql_version, library_version()),
		 errhint("%s", hint_for(fit_of(sql_version)))));
}

} // namespace tq
