// tq_help: what docs/reference.md says of a function, view or type. Reads the catalog only, so it needs neither shared
// memory nor a right.
// Regime: PG; raises 42704. Locks: AccessShareLock on tq.help.
#include "api/args.hpp"
#include "database/attach.hpp"
#include "pg/function.hpp"
#include "pg/near_words.hpp"
#include "pg/owner.hpp"
#include "pg/spi.hpp"

namespace tq
{

namespace
{

// The lines of a call, one after the other, each with its line feed.
using Text = StringInfoData;

// All names by topic.
void list_all(Oid extension, Text *out)
{
	const pg::OwnerScope scope = pg::enter_owner(extension);
	pg::sql("SELECT topic, name, summary, max(length(name)) OVER () AS width FROM tq.help ORDER BY position", {}, true,
			0);
	const char *last = "";
	for (uint64 i = 0; i < SPI_processed; ++i)
	{
		const char *topic = pg::spi_text(i, "topic");
		const char *name = pg::spi_text(i, "name");
		const char *summary = pg::spi_text(i, "summary");
		if (topic == nullptr || name == nullptr || summary == nullptr)
			continue; // the owner may alter the table
		if (strcmp(topic, last) != 0)
			appendStringInfo(out, "%s%s\n", i > 0 ? "\n" : "", topic);
		last = topic;
		appendStringInfo(out, "  %-*s  %s\n", pg::spi_int4(i, "width"), name, summary);
	}
	pg::leave_owner(scope);
}

// The details of one name; false if there is none. `near` gets the nearest name.
bool details_of(Oid extension, const char *name, Text *out, pg::Nearest *near)
{
	const pg::OwnerScope scope = pg::enter_owner(extension);
	pg::sql("SELECT name, details FROM tq.help ORDER BY position", {}, true, 0);
	bool found = false;
	for (uint64 i = 0; i < SPI_processed && !found; ++i)
	{
		const char *other = pg::spi_text(i, "name");
		const char *details = pg::spi_text(i, "details");
		found = other != nullptr && details != nullptr && strcmp(other, name) == 0;
		if (found)
			appendStringInfo(out, "%s\n", details);
		else if (other != nullptr)
			pg::consider(near, other);
	}
	pg::leave_owner(scope);
	return found;
}

} // namespace

// name
TQ_FUNCTION(tq_help)
{
	FuncCallContext *call = nullptr;
	if (SRF_IS_FIRSTCALL())
	{
		const char *name = text_or_null(fcinfo, 0, "name");
		call = SRF_FIRSTCALL_INIT();
		const MemoryContext old = MemoryContextSwitchTo(call->multi_call_memory_ctx);
		auto *page = makeStringInfo();
		MemoryContextSwitchTo(old);
		const Oid extension = extension_of_call(fcinfo);
		pg::Nearest near{name};
		if (name == nullptr)
			list_all(extension, page);
		else if (!details_of(extension, name, page, &near))
			ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("tq has no function, view or type \"%s\"", name),
							errhint("%stq_help() lists them.", pg::perhaps(near))));
		call->user_fctx = page;
	}
	call = SRF_PERCALL_SETUP();
	auto *page = static_cast<Text *>(call->user_fctx);
	const char *line = page->data + page->cursor;
	const char *end = strchr(line, '\n');
	if (end == nullptr)
		SRF_RETURN_DONE(call);
	page->cursor = static_cast<int>(end + 1 - page->data);
	SRF_RETURN_NEXT(call, PointerGetDatum(cstring_to_text_with_len(line, static_cast<int>(end - line))));
}

} // namespace tq
