/*-------------------------------------------------------------------------
 *
 * pid_deadlock.c
 *		Reports of deadlocks name sessions.
 *
 * DeadLockReport (deadlock.c) names processes in the error's detail, one line
 * for each that waits, and in the server log's.  All of them wait for locks
 * still, but for the one that reports, so who is in place in each is who waits.
 *
 * In a pooled backend the detail is written anew when the error is made: an
 * error context callback at the bottom of the stack (errfinish, elog.c, calls
 * all before anybody catches the error) may set it once more.  So it is what
 * PL/pgSQL finds, too.  PostgresMain empties the stack after each error, and
 * only then: it is put there again at the next boundary.
 *
 * Other backends have no such place.  There emit_log_hook, which sees the error
 * before it is logged and sent (EmitErrorReport, elog.c), changes what the
 * client and the log are told; what PL/pgSQL catches names processes.
 *
 * The lines are found by the server's own format, in the language at hand.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "utils/memutils.h"

#include "pid_deadlock.h"
#include "pid_functions.h"
#include "session_pid.h"

/* gettext_noop's, of deadlock.c: its translations are the server's */
static const char *const formats[] = {
	"Process %d waits for %s on %s; blocked by process %d.",
	"Process %d: %s"
};

static ErrorContextCallback watch;

/* What follows a conversion ("%d", "%2$s"), whose kind is given back. */
static const char *
skip_conversion(const char *format, char *kind)
{
	format++;
	while (*format != '\0' && strchr("0123456789$", *format) != NULL)
		format++;
	*kind = *format;
	return *format != '\0' ? format + 1 : format;
}

static void
append_pid(StringInfo out, const BatonServing *serving, const char *digits, int length)
{
	int			process = atoi(digits);
	int			pid = baton_serving_pid(serving, process);

	if (pid != 0 && pid != process)
		appendStringInfo(out, "%d", pid);
	else
		appendBinaryStringInfo(out, digits, length);
}

/*
 * Appends a line with its process IDs changed, if it was made by that format;
 * else false, and nothing is appended.
 */
static bool
append_named(StringInfo out, const BatonServing *serving, const char *format,
			 const char *line, const char *end)
{
	int			before = out->len;

	while (*format != '\0')
	{
		char		kind;
		const char *rest;
		Size		literal;

		if (*format != '%')
		{
			if (line >= end || *line != *format)
				break;
			appendStringInfoChar(out, *line);
			line++;
			format++;
			continue;
		}
		rest = skip_conversion(format, &kind);
		if (kind == 'd')
		{
			int			length = strspn(line, "0123456789");

			if (length == 0 || line + length > end)
				break;
			append_pid(out, serving, line, length);
			line += length;
		}
		else
		{
			/* up to what follows, which may be the line's end */
			const char *stop = line;

			literal = strcspn(rest, "%");
			while (stop < end && (literal == 0 || strncmp(stop, rest, literal) != 0))
				stop++;
			appendBinaryStringInfo(out, line, stop - line);
			line = stop;
		}
		format = rest;
	}
	if (*format == '\0' && line == end)
		return true;
	out->len = before;
	out->data[before] = '\0';
	return false;
}

/* The same text with sessions in the place of pooled processes; palloc'd. */
static char *
name_sessions(const char *text, const BatonServing *serving)
{
	StringInfoData out;
	const char *line = text;

	initStringInfo(&out);
	for (;;)
	{
		const char *end = strchrnul(line, '\n');
		bool		named = false;

		for (int i = 0; i < (int) lengthof(formats) && !named; i++)
			named = append_named(&out, serving, gettext(formats[i]), line, end);
		if (!named)
			appendBinaryStringInfo(&out, line, end - line);
		if (*end == '\0')
			return out.data;
		appendStringInfoChar(&out, '\n');
		line = end + 1;
	}
}

static void
watch_errors(void *argument)
{
	MemoryContext caller;
	MemoryContext context;
	const BatonServing *serving;
	ErrorData  *edata;

	if (likely(geterrcode() != ERRCODE_T_R_DEADLOCK_DETECTED))
		return;
	context = AllocSetContextCreate(TopMemoryContext, "pg_baton deadlock",
									ALLOCSET_DEFAULT_SIZES);
	caller = MemoryContextSwitchTo(context);
	edata = CopyErrorData();
	serving = baton_serving_read();
	if (edata->detail != NULL)
		errdetail_internal("%s", name_sessions(edata->detail, serving));
	if (edata->detail_log != NULL)
		errdetail_log("%s", name_sessions(edata->detail_log, serving));
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
}

void
baton_deadlock_watch(void)
{
	if (error_context_stack != NULL || !baton_pids_active())
		return;
	watch.callback = watch_errors;
	watch.previous = NULL;
	error_context_stack = &watch;
}

void
baton_deadlock_log(ErrorData *edata)
{
	if (unlikely(edata->sqlerrcode == ERRCODE_T_R_DEADLOCK_DETECTED) && baton_pids_active())
	{
		const BatonServing *serving = baton_serving_read();

		/* named already, it stays as it is; both live as long as the error */
		if (edata->detail != NULL)
			edata->detail = name_sessions(edata->detail, serving);
		if (edata->detail_log != NULL)
			edata->detail_log = name_sessions(edata->detail_log, serving);
	}
}
