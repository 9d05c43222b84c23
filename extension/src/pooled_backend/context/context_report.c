/*-------------------------------------------------------------------------
 *
 * context_report.c
 *		ParameterStatus: what each client has been told.
 *
 * guc.c keeps in each reported parameter's record the value that it last sent
 * (last_reported), and sends a value that is another (ReportGUCOption).  Of a
 * backend that serves many clients that memory must be the client's: it is
 * exchanged when a session comes.  If the parameters then say something else
 * (the configuration has been reloaded, say), the client shall hear of it when
 * it would from an ordinary backend: just before ReadyForQuery, where
 * PostgresMain calls ReportChangedGUCOptions() (guc.c).  So nothing is sent
 * when the session comes; the records are marked when its own message is about
 * to be read (baton_report_arm).
 *
 * The value of the REPORTED entry: name NUL value NUL, for each parameter that
 * is reported and was sent.
 *
 * Invariants: told holds what the records' last_reported said when last looked
 * at.  guc.c changes last_reported only while it sends a ParameterStatus, so
 * without one (note_message, or our own call) nothing has changed.
 * last_reported is allocated as guc.c does it.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "arena.h"
#include "context_guc.h"
#include "context_report.h"
#include "delta.h"
#include "guc_value.h"
#include "pooled_state.h"

static BatonPlacedReports *const placed = &BatonPlaced.reports;

/* To compare with what was told. */
static StringInfoData now_told;

/* The reported parameters, in the table's order, as of its version. */
static struct config_generic **reported = NULL;
static int	reported_count = 0;
static uint64 reported_version = 0;

static void
find_reported(void)
{
	struct config_generic **variables;
	int			count;
	int			found = 0;

	if (reported != NULL && reported_version == baton_guc_table_version())
		return;
	variables = baton_guc_records(&count);
	for (int i = 0; i < count; i++)
		if (variables[i]->flags & GUC_REPORT)
			found++;
	if (reported != NULL)
		pfree(reported);
	reported = NULL;
	reported = MemoryContextAlloc(TopMemoryContext, (found + 1) * sizeof(*reported));
	reported_count = 0;
	for (int i = 0; i < count; i++)
		if (variables[i]->flags & GUC_REPORT)
			reported[reported_count++] = variables[i];
	reported_version = baton_guc_table_version();
}

static void
look(StringInfo into)
{
	resetStringInfo(into);
	find_reported();
	for (int i = 0; i < reported_count; i++)
	{
		struct config_generic *record = reported[i];

		if (record->last_reported == NULL)
			continue;
		appendBinaryStringInfo(into, record->name, strlen(record->name) + 1);
		appendBinaryStringInfo(into, record->last_reported,
							   strlen(record->last_reported) + 1);
	}
}

const char *
baton_report_attach(void)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	if (placed->told.data == NULL)
	{
		initStringInfo(&placed->told);
		initStringInfo(&now_told);
	}
	MemoryContextSwitchTo(old);
	look(&placed->told);
	placed->told_serial = 0;
	if (baton_guc_find("in_hot_standby") == NULL)
		return "parameter \"in_hot_standby\" was not found";
	return NULL;
}

/* What the pairs have for this name; NULL if nothing.  Looks from `at` on. */
static const char *
value_of(const char *name, const char *at, const char *end)
{
	while (at < end)
	{
		const char *value = at + strlen(at) + 1;

		if (value >= end)
			break;
		if (strcmp(at, name) == 0)
			return value;
		at = value + strlen(value) + 1;
	}
	return NULL;
}

/* Makes the records remember what the client was told. */
static void
exchange(const char *pairs, Size length)
{
	const char *end = pairs + length;
	const char *next = pairs;

	if (length > 0 && end[-1] != '\0')
		elog(ERROR, "stored parameter reports have no end");

	find_reported();
	for (int i = 0; i < reported_count; i++)
	{
		struct config_generic *record = reported[i];
		const char *value;

		/* another backend wrote them, as a rule in the same order */
		value = next < end && strcmp(next, record->name) == 0 ?
			value_of(record->name, next, end) :
			value_of(record->name, pairs, end);
		if (value != NULL)
			next = value + strlen(value) + 1;
		baton_guc_set_reported(record, value);
	}
}

/*
 * As ShowGUCOption() (_ShowOption() in guc.c of 15) gives it, without a copy
 * of it; NULL if it is not known how.
 */
static const char *
shown(const struct config_generic *record)
{
	switch (record->vartype)
	{
		case PGC_BOOL:
			{
				const struct config_bool *conf = (const struct config_bool *) record;

				if (conf->show_hook)
					return conf->show_hook();
				return *conf->variable ? "on" : "off";
			}
		case PGC_STRING:
			{
				const struct config_string *conf = (const struct config_string *) record;

				if (conf->show_hook)
					return conf->show_hook();
				return *conf->variable ? *conf->variable : "";
			}
		default:
			return NULL;
	}
}

/* Does any reported parameter say what its client has not been told? */
static bool
any_to_report(void)
{
	find_reported();
	for (int i = 0; i < reported_count; i++)
	{
		struct config_generic *record = reported[i];
		const char *value = shown(record);
		char	   *copy = NULL;
		bool		same;

		if (record->flags & GUC_SUPERUSER_ONLY)
			return true;		/* the next call might fail; have it looked at */
		if (value == NULL)
			value = copy = GetConfigOptionByName(record->name, NULL, true);
		same = value != NULL && record->last_reported != NULL &&
			strcmp(value, record->last_reported) == 0;
		if (copy != NULL)
			pfree(copy);
		if (!same)
			return true;
	}
	return false;
}

void
baton_report_install(const BatonStored *entry)
{
	uint64		serial = entry ? entry->serial : 0;

	if (serial == 0 || serial != placed->told_serial || placed->sent)
	{
		const char *pairs = entry ? entry->value : "";
		Size		length = entry ? entry->value_length : 0;

		if (placed->sent)
			look(&placed->told);
		placed->sent = false;
		if (placed->told.len != (int) length ||
			memcmp(placed->told.data, pairs, length) != 0)
		{
			StringInfoData other;

			/* it is read up to its ends: of a copy */
			resetStringInfo(&now_told);
			appendBinaryStringInfo(&now_told, pairs, length);
			exchange(now_told.data, length);
			other = placed->told;
			placed->told = now_told;
			now_told = other;
			baton_guc_report_touched = true;
		}
		placed->told_serial = serial;
	}
	/* what is touched stays so until somebody has been told */
	placed->news = baton_guc_report_touched && any_to_report();
	baton_guc_report_touched = placed->news;
}

void
baton_report_withhold(void)
{
	placed->withheld = true;
}

void
baton_report_arm(void)
{
	/* guc.c believes that the client has got it */
	if (placed->withheld)
		exchange(placed->told.data, placed->told.len);
	placed->news |= placed->withheld;
	placed->withheld = false;
	if (!placed->news)
		return;
	placed->news = false;
	baton_guc_report_touched = false;
	placed->sent = true;		/* will be; capture will see */
	baton_guc_look_for_reports();
}

void
baton_report_greet(StringInfo reported)
{
	exchange("", 0);
	BeginReportingGUCOptions();
	baton_guc_report_touched = false;
	look(&placed->told);
	placed->told_serial = 0;
	placed->sent = false;
	placed->news = false;
	appendBinaryStringInfo(reported, placed->told.data, placed->told.len);
}

bool
baton_report_capture(void)
{
	StringInfoData other;

	if (!placed->sent)
		return false;
	placed->sent = false;
	look(&now_told);
	if (now_told.len == placed->told.len &&
		memcmp(now_told.data, placed->told.data, placed->told.len) == 0)
		return false;
	baton_delta_put(BATON_KIND_REPORTED, "", 0, now_told.data, now_told.len,
					NULL, 0);
	other = placed->told;
	placed->told = now_told;
	now_told = other;
	placed->told_serial = 0;
	return true;
}

void
baton_report_note_message(char type)
{
	if (type == 'S')
		placed->sent = true;
}
