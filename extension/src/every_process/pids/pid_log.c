/*-------------------------------------------------------------------------
 *
 * pid_log.c
 *		Lines of the server's log bear their session's ID.
 *
 * `%c` in log_line_prefix is when the session began and its process ID, in
 * hexadecimal.  elog.c makes it of MyStartTime, which is the session's in place
 * (identity.c), and MyProcPid, which is the process's.  What a session has to
 * say is therefore written from here: emit_log_hook is called just before a line
 * is (EmitErrorReport, elog.c, 15 to 18), and may turn that off for the server's
 * log; so it has EmitErrorReport write it, to the log alone, while the session's
 * ID stands in the prefix in the place of `%c`.  The prefix is as before when the
 * hook returns.  `%p` stays the process's.
 *
 * The columns session_id of csvlog and jsonlog have no format to change: the
 * half of them that is a process ID is the process's.
 *
 * A line below ERROR is three deep in elog.c then, which takes that for
 * in_error_recursion_trouble(): words of its own, such as "LOG:", are not
 * translated.  Nothing else comes of it here (15 to 18).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>

#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/elog.h"

#include "pid_functions.h"
#include "pid_log.h"
#include "session_pid.h"

/*
 * Behind the '%' at `format`: a minus and digits may come before the letter, as
 * for process_log_prefix_padding (elog.c).
 */
static const char *
skip_padding(const char *format, int *padding)
{
	bool		is_left = *format == '-';

	if (is_left)
		format++;
	*padding = 0;
	for (; isdigit((unsigned char) *format); format++)
		*padding = Min(*padding * 10 + (*format - '0'), 10000);
	if (is_left)
		*padding = -*padding;
	return format;
}

static bool
prefix_has_session(const char *prefix)
{
	int			padding;

	while ((prefix = strchr(prefix, '%')) != NULL)
	{
		prefix = skip_padding(prefix + 1, &padding);
		if (*prefix == 'c')
			return true;
		if (*prefix != '\0')
			prefix++;
	}
	return false;
}

/* The prefix with the session's ID for each `%c`; palloc'd. */
static char *
prefix_of_session(const char *prefix)
{
	StringInfoData out;
	char		id[64];

	snprintf(id, sizeof(id), "%llx.%x", (unsigned long long) MyStartTime,
			 (unsigned int) baton_my_pid);
	initStringInfo(&out);
	while (*prefix != '\0')
	{
		const char *after = prefix + 1;
		int			padding;

		if (*prefix == '%')
		{
			after = skip_padding(after, &padding);
			if (*after == 'c')
			{
				appendStringInfo(&out, "%*s", padding, id);
				prefix = after + 1;
				continue;
			}
			if (*after != '\0')
				after++;
		}
		appendBinaryStringInfo(&out, prefix, after - prefix);
		prefix = after;
	}
	return out.data;
}

static void
write_for_session(ErrorData *edata)
{
	char	   *server_prefix = Log_line_prefix;
	char	   *prefix = prefix_of_session(server_prefix);
	bool		to_client = edata->output_to_client;
	emit_log_hook_type hook = emit_log_hook;

	PG_TRY();
	{
		edata->output_to_client = false;
		emit_log_hook = NULL;
		Log_line_prefix = prefix;
		EmitErrorReport();
	}
	PG_FINALLY();
	{
		Log_line_prefix = server_prefix;
		emit_log_hook = hook;
		edata->output_to_client = to_client;
	}
	PG_END_TRY();
	pfree(prefix);
	edata->output_to_server = false;
}

void
baton_pid_log(ErrorData *edata)
{
	if (baton_my_pid != 0 && edata->output_to_server && baton_pids_active() &&
		Log_line_prefix != NULL && prefix_has_session(Log_line_prefix))
		write_for_session(edata);
}
