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

#include "context_guc.h"
#include "context_report.h"
#include "guc_value.h"

static StringInfoData told;
static StringInfoData now_told;
static uint64 told_serial = 0;	/* the entry that says the same; 0: none known */
static bool sent = false;		/* a ParameterStatus since told was made */
static bool news = false;		/* the client has not been told all */
static bool withheld = false;	/* a ParameterStatus was thrown away */

static void
look(StringInfo into)
{
	struct config_generic **variables;
	int			count;

	resetStringInfo(into);
	variables = baton_guc_records(&count);
	for (int i = 0; i < count; i++)
	{
		struct config_generic *record = variables[i];

		if ((record->flags & GUC_REPORT) == 0 || record->last_reported == NULL)
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

	if (told.data == NULL)
	{
		initStringInfo(&told);
		initStringInfo(&now_told);
	}
	MemoryContextSwitchTo(old);
	look(&told);
	told_serial = 0;
	if (baton_guc_find("in_hot_standby") == NULL)
		return "parameter \"in_hot_standby\" was not found";
	return NULL;
}

static void
set_last_reported(struct config_generic *record, const char *value)
{
	if (record->last_reported != NULL)
	{
		if (value != NULL && strcmp(record->last_reported, value) == 0)
			return;
		baton_guc_free(record->last_reported);
		record->last_reported = NULL;
	}
	if (value != NULL)
		record->last_reported = baton_guc_strdup(value);
}

/* Makes the records remember what the client was told. */
static void
exchange(const char *pairs, Size length)
{
	struct config_generic **variables;
	int			count;
	const char *end = pairs + length;

	if (length > 0 && end[-1] != '\0')
		elog(ERROR, "stored parameter reports have no end");

	variables = baton_guc_records(&count);
	for (int i = 0; i < count; i++)
	{
		struct config_generic *record = variables[i];
		const char *value = NULL;

		if ((record->flags & GUC_REPORT) == 0)
			continue;
		for (const char *name = pairs; name < end;)
		{
			const char *its_value = name + strlen(name) + 1;

			if (its_value >= end)
				break;
			if (strcmp(name, record->name) == 0)
			{
				value = its_value;
				break;
			}
			name = its_value + strlen(its_value) + 1;
		}
		set_last_reported(record, value);
	}
}

/* Does any reported parameter say what its client has not been told? */
static bool
any_to_report(void)
{
	struct config_generic **variables;
	int			count;

	variables = baton_guc_records(&count);
	for (int i = 0; i < count; i++)
	{
		struct config_generic *record = variables[i];
		char	   *value;
		bool		same;

		if ((record->flags & GUC_REPORT) == 0)
			continue;
		if (record->flags & GUC_SUPERUSER_ONLY)
			return true;		/* the next call might fail; have it looked at */
		value = GetConfigOptionByName(record->name, NULL, true);
		same = value != NULL && record->last_reported != NULL &&
			strcmp(value, record->last_reported) == 0;
		if (value != NULL)
			pfree(value);
		if (!same)
			return true;
	}
	return false;
}

void
baton_report_install(const BatonEntry *reported)
{
	uint64		serial = reported ? reported->serial : 0;

	if (serial == 0 || serial != told_serial || sent)
	{
		const char *pairs = reported ? baton_entry_value(reported) : "";
		Size		length = reported ? reported->value_length : 0;

		if (sent)
			look(&told);
		sent = false;
		if (told.len != (int) length ||
			memcmp(told.data, pairs, length) != 0)
		{
			exchange(pairs, length);
			resetStringInfo(&told);
			appendBinaryStringInfo(&told, pairs, length);
			baton_guc_report_touched = true;
		}
		told_serial = serial;
	}
	/* what is touched stays so until somebody has been told */
	news = baton_guc_report_touched && any_to_report();
	baton_guc_report_touched = news;
}

void
baton_report_withhold(void)
{
	withheld = true;
}

void
baton_report_arm(void)
{
	/* guc.c believes that the client has got it */
	if (withheld)
		exchange(told.data, told.len);
	news |= withheld;
	withheld = false;
	if (!news)
		return;
	news = false;
	baton_guc_report_touched = false;
	sent = true;				/* will be; capture will see */
	baton_guc_look_for_reports();
}

void
baton_report_greet(StringInfo reported)
{
	exchange("", 0);
	BeginReportingGUCOptions();
	baton_guc_report_touched = false;
	look(&told);
	told_serial = 0;
	sent = false;
	news = false;
	appendBinaryStringInfo(reported, told.data, told.len);
}

bool
baton_report_capture(void)
{
	StringInfoData other;

	if (!sent)
		return false;
	sent = false;
	look(&now_told);
	if (now_told.len == told.len &&
		memcmp(now_told.data, told.data, told.len) == 0)
		return false;
	baton_delta_put(BATON_KIND_REPORTED, "", 0, now_told.data, now_told.len,
					NULL, 0);
	other = told;
	told = now_told;
	now_told = other;
	told_serial = 0;
	return true;
}

void
baton_report_note_message(char type)
{
	if (type == 'S')
		sent = true;
}
