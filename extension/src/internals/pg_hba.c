/*-------------------------------------------------------------------------
 *
 * pg_hba.c
 *		PostgreSQL's client authentication (hba.c, auth.c): reading, matching
 *		and replacing its rules, and calling hooks without heeding their
 *		refusal.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "access/xact.h"
#include "libpq/hba.h"
#include "libpq/libpq-be.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/fd.h"
#include "storage/lwlock.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "pg_hba.h"
#include "pg_port.h"
#include "self_check.h"

/* ----------------------------------------------------------------
 *		Reading pg_hba.conf and pg_ident.conf.
 * ----------------------------------------------------------------
 */

FILE *
baton_auth_file_open(const char *name, List **lines, int level)
{
	FILE	   *file;

	*lines = NIL;
#if PG_VERSION_NUM >= 160000
	file = open_auth_file(name, level, 0, NULL);
	if (file != NULL)
		tokenize_auth_file(name, file, lines, level, 0);
#else
	file = AllocateFile(name, "r");
	if (file == NULL)
		ereport(level,
				(errcode_for_file_access(),
				 errmsg("could not open configuration file \"%s\": %m", name)));
	else
		(void) tokenize_auth_file(name, file, lines, level);
#endif
	return file;
}

void
baton_auth_file_close(FILE *file)
{
	if (file == NULL)
		return;
#if PG_VERSION_NUM >= 160000
	free_auth_file(file, 0);	/* also frees the lines */
#else
	FreeFile(file);
#endif
}

/* ----------------------------------------------------------------
 *		pg_hba.conf and pg_ident.conf, matched by the server's own code.
 *
 * Problem: hba.c exports load_hba(), hba_getauthmethod(), load_ident() and
 * check_usermap(), but they use lists in static variables, in children of
 * PostmasterContext.  A background worker deletes that context before any
 * code of pg_baton runs, and hba.c's variables dangle; the next load_hba()
 * would delete the old list's context once more.
 *
 * So the launcher takes the two contexts out of PostmasterContext before they
 * are deleted: a context of pg_baton beside them, the guard, has a reset
 * callback, which is called when the guard is deleted.  What PostgreSQL
 * guarantees:
 * - children are deleted first to last (MemoryContextDelete() in mcxt.c, 15
 *   to 18: it always takes the first there is), and a new child becomes the
 *   first (MemoryContextCreate(), MemoryContextSetParent()).  So the guard is
 *   made the first child in each child process of the postmaster, right after
 *   the fork() (fork_process.c calls just that), by pthread_atfork();
 * - a callback is called while its context is still in the tree
 *   (MemoryContextCallResetCallbacks()), and the deleting function reads the
 *   tree anew afterwards;
 * - the lists are in contexts of these two names (load_hba() and
 *   load_ident()), and in nothing else: HbaLines and, from 16 on, regular
 *   expressions; those of pg_ident.conf up to 15 come from malloc().
 *
 * Checked: there was one context for pg_hba.conf, and the first load_hba()
 * that replaces the lines has deleted that very context.  If that fails, the
 * launcher leaves each login to the server's backends (login.c).
 *
 * Backends and other workers do nothing in the callback.  But in 17 and 18
 * the kind of process is not known yet: there all workers keep the pages,
 * which they share with the postmaster until a process writes to them.
 *
 * Only the launcher uses this.
 */

static const char *launcher_function = NULL;

/*
 * Beside the lists, in the postmaster and in its children until they delete
 * it.
 */
static MemoryContext guard = NULL;

/* The launcher's replacement for PostmasterContext, with the lists in it. */
static MemoryContext kept = NULL;
static int	hba_contexts = 0;
static int	ident_contexts = 0;

/* The first load must delete the kept contexts. */
static bool hba_was_replaced = false;
static bool ident_was_replaced = false;
static bool failed = false;

/*
 * After fork(): expects the postmaster's context tree unchanged, and allocates
 * nothing.
 */
static void
child_begins(void)
{
	if (guard == NULL)
		return;
	MemoryContextSetParent(guard, NULL);
	MemoryContextSetParent(guard, PostmasterContext);
}

static void
note_replaced(void *was_replaced)
{
	*(bool *) was_replaced = true;
}

static void
keep(MemoryContext context, bool *was_replaced)
{
	MemoryContextCallback *callback = MemoryContextAlloc(context, sizeof(*callback));

	callback->func = note_replaced;
	callback->arg = was_replaced;
	MemoryContextRegisterResetCallback(context, callback);
	MemoryContextSetParent(context, kept);
}

/* The guard is being deleted, and its siblings will be next. */
static void
guard_ends(void *argument)
{
	MemoryContext next;

	guard = NULL;
	if (MyProcPort != NULL)
		return;
	if (MyBgworkerEntry != NULL &&
		strcmp(MyBgworkerEntry->bgw_function_name, launcher_function) != 0)
		return;

	kept = AllocSetContextCreate(TopMemoryContext, "pg_baton rules", ALLOCSET_SMALL_SIZES);
	for (MemoryContext at = PostmasterContext->firstchild; at != NULL; at = next)
	{
		next = at->nextchild;
		if (strcmp(at->name, "hba parser context") == 0)
		{
			hba_contexts++;
			keep(at, &hba_was_replaced);
		}
		else if (strcmp(at->name, "ident parser context") == 0)
		{
			ident_contexts++;
			keep(at, &ident_was_replaced);
		}
	}
}

void
baton_rules_init(const char *worker_function)
{
	MemoryContextCallback *callback;

	if (PostmasterContext == NULL || pthread_atfork(NULL, NULL, child_begins) != 0)
		return;					/* nothing will have been kept */
	launcher_function = worker_function;
	guard = AllocSetContextCreate(PostmasterContext, "pg_baton guard of rules",
								  ALLOCSET_SMALL_SIZES);
	callback = MemoryContextAlloc(guard, sizeof(*callback));
	callback->func = guard_ends;
	callback->arg = NULL;
	MemoryContextRegisterResetCallback(guard, callback);
}

bool
baton_rules_kept(void)
{
	/* without a pg_ident.conf the server has no list for it */
	if (!failed && (hba_contexts != 1 || ident_contexts > 1 ||
					baton_self_check_is_broken("rules")))
	{
		failed = true;
		baton_self_check_failed(BATON_COSTS_LOGINS, "the postmaster's rules of authentication were not found");
	}
	return !failed;
}

bool
baton_rules_have_maps(void)
{
	return ident_contexts > 0;
}

/* An error inside ends the launcher. */
static bool
load(bool (*load_file) (void), int contexts, const bool *was_replaced)
{
	bool		loaded;

	PostmasterContext = kept;
	loaded = load_file();
	PostmasterContext = NULL;
	if (loaded && contexts > 0 && !*was_replaced && !failed)
	{
		failed = true;
		baton_self_check_failed(BATON_COSTS_LOGINS, "the postmaster's rules of authentication are elsewhere");
	}
	return loaded;
}

bool
baton_rules_load_hba(void)
{
	return load(load_hba, hba_contexts, &hba_was_replaced);
}

bool
baton_rules_load_ident(void)
{
	return load(load_ident, ident_contexts, &ident_was_replaced);
}

/*
 * Fills in what check_hba() and the functions that it calls (hba.c, 15 to 18)
 * read of a Port. am_walsender, which check_db() reads, is false in the
 * launcher.
 */
const HbaLine *
baton_rules_match(const BatonClient *client, const char *host_name)
{
	Port	   *port = palloc0(sizeof(Port));
	const HbaLine *line;

	port->sock = PGINVALID_SOCKET;
	port->raddr = client->address;
	port->ssl_in_use = client->is_secure;
	port->user_name = pstrdup(client->user);
	port->database_name = pstrdup(client->database);

	/* check_hostname(): known and verified, or known to be unusable */
	if (host_name != NULL)
		port->remote_hostname = pstrdup(host_name);
	port->remote_hostname_resolv = host_name != NULL ? +1 : -2;

	hba_getauthmethod(port);
	line = port->hba;
	pfree(port);
	return line->auth_method == uaImplicitReject ? NULL : line;
}

bool
baton_rules_map(const char *map, const char *role, const char *system_user)
{
	return check_usermap(map, role, system_user, false) == STATUS_OK;
}

char *
baton_rules_line_place(const HbaLine *line)
{
#if PG_VERSION_NUM >= 160000
	return psprintf("%s:%d", line->sourcefile, line->linenumber);
#else
	return psprintf("%s:%d", HbaFileName, line->linenumber);
#endif
}

char *
baton_rules_line_detail(const HbaLine *line)
{
#if PG_VERSION_NUM >= 160000
	return psprintf(_("Connection matched file \"%s\" line %d: \"%s\""),
					line->sourcefile, line->linenumber, line->rawline);
#else
	return psprintf(_("Connection matched pg_hba.conf line %d: \"%s\""),
					line->linenumber, line->rawline);
#endif
}

bool
baton_rules_same_line(const HbaLine *one, const HbaLine *other)
{
#if PG_VERSION_NUM >= 160000
	if (strcmp(one->sourcefile, other->sourcefile) != 0)
		return false;
#endif
	return one->linenumber == other->linenumber;
}

/* ----------------------------------------------------------------
 *		The rules for a backend that the dispatcher opens.
 *
 * The server's rules have admitted the sessions of its pool; on the server's
 * own port a session is not checked against them again.  So a backend that is
 * opened for them is not, either (attach.c).
 *
 * What PostgreSQL guarantees: ClientAuthentication() uses the lines that
 * load_hba() (hba.c, 15 to 18) has read last in this process.  The postmaster
 * reads them before it forks; a child may do so again, from the file that
 * HbaFileName names, as long as PostmasterContext lives, which PostgresMain()
 * deletes after authentication.  The lines of a backend are not read after
 * that; pg_hba_file_rules reads the file.
 *
 * The launcher checks this, as it has those lines as well: before it reads
 * the file's lines for the first time it reads these, and tests which clients
 * they admit.
 */

static const char lines[] = "local all all trust\nhost all all all trust\n";

static bool works = true;

static bool
load_lines(bool (*load) (void))
{
	char	   *configured = HbaFileName;
	char		path[64];
	int			fd = memfd_create("pg_baton hba", MFD_CLOEXEC);
	bool		loaded;

	if (fd < 0 || write(fd, lines, sizeof(lines) - 1) != sizeof(lines) - 1)
		ereport(FATAL,
				(errcode_for_file_access(),
				 errmsg("could not write to memory file: %m")));
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	HbaFileName = path;
	loaded = load();
	HbaFileName = configured;
	close(fd);
	return loaded;
}

void
baton_trusted_hba_load(void)
{
	if (!load_lines(load_hba))
		ereport(FATAL,
				(errcode(ERRCODE_CONFIG_FILE_ERROR),
				 errmsg("could not let in a backend of the pool")));
}

static bool
lets_in(sa_family_t family)
{
	/* no role has that name, and no row is read to find that out */
	BatonClient client = {.user = "",.database = ""};
	static const uint8 address[16] = {127, 0, 0, 1};
	const HbaLine *line;

	(void) baton_address_make(&client.address, family, 0, address, 0);
	line = baton_rules_match(&client, NULL);
	return line != NULL && line->auth_method == uaTrust;
}

void
baton_trusted_hba_check(void)
{
	/* then each backend checks for itself */
	if (!baton_rules_kept())
		return;

	StartTransactionCommand();
	works = load_lines(baton_rules_load_hba) && lets_in(AF_UNIX) && lets_in(AF_INET) &&
		!baton_self_check_is_broken("trusted_rules");
	CommitTransactionCommand();
	if (!works)
		baton_self_check_failed(BATON_COSTS_BACKENDS, "rules of our own are not gone by");
}

bool
baton_trusted_hba_works(void)
{
	return works;
}

/* ----------------------------------------------------------------
 *		A ClientAuthentication_hook that is called and cannot refuse.
 *
 * A library that locks roles out (for example after wrong passwords) refuses
 * in this hook, by ereport(FATAL).  On a direct connection an established
 * session is not affected by that.  A session of the pool must not be
 * affected, either: the dispatcher opens its next backend because the server
 * has admitted its client before.  Omitting the call of the hook would be
 * wrong, too: some libraries set up a process in it (sepgsql, Citus).
 *
 * What PostgreSQL guarantees (elog.c, 15 to 18): errfinish() calls
 * emit_log_hook for a FATAL before it does anything that cannot be undone,
 * and FlushErrorState() discards all that it has begun.  Locks that the
 * library holds, and that FATAL would have released, are released here.  The
 * transaction is InitPostgres()'s, and stays.
 *
 * Errors that are no refusal end the backend: insufficient resources (class
 * 53), orders to end and the time limit of authentication (57), errors of the
 * system (58).  So does a refusal if log_min_messages is panic, as the hook
 * is not called then.
 */

/* The target of a refusal; NULL: no hook is being called. */
static sigjmp_buf *way_out = NULL;

static bool
is_refusal(int sqlerrcode)
{
	switch (ERRCODE_TO_CATEGORY(sqlerrcode))
	{
		case ERRCODE_INSUFFICIENT_RESOURCES:
		case ERRCODE_OPERATOR_INTERVENTION:
		case ERRCODE_SYSTEM_ERROR:
			return false;
		default:
			return true;
	}
}

void
baton_overruled_call(ClientAuthentication_hook_type hook, Port *port, int status)
{
	MemoryContext caller = CurrentMemoryContext;
	uint32		held_off = InterruptHoldoffCount;

	PG_TRY();
	{
		way_out = PG_exception_stack;
		hook(port, status);
		way_out = NULL;
	}
	PG_CATCH();
	{
		way_out = NULL;
		if (!is_refusal(geterrcode()))
			PG_RE_THROW();
		MemoryContextSwitchTo(caller);
		FlushErrorState();
		LWLockReleaseAll();
		InterruptHoldoffCount = held_off;
	}
	PG_END_TRY();
}

void
baton_overruled_log(const ErrorData *edata)
{
	if (way_out == NULL || edata->elevel != FATAL || !is_refusal(edata->sqlerrcode))
		return;
	/* handlers within the library do not run for FATAL, either */
	PG_exception_stack = way_out;
	PG_RE_THROW();
}
