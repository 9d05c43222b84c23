/*-------------------------------------------------------------------------
 *
 * statement_environment.c
 *		What analysis and planning of a statement take in beside its text.
 *
 * Which is: the role; the search path; the settings that literals are read by,
 * that folded functions format by, and that say how to rewrite and plan; whose
 * temporary objects there are.  plancache.c compares the search path, and role
 * and row security where a policy is involved, and nothing of the rest: a plan
 * keeps what the rest has made of it.  So a statement is shared by sessions
 * only within one environment, which is the values of all that a session can
 * set, but for what neither analysis nor planning looks at.
 *
 * Not here: placeholders (SET app.tenant_id), which no code but
 * current_setting() and the user's functions can read.  current_setting() is
 * stable, so the planner takes it for an estimate at most.  A user's function that is
 * called immutable, but reads one, is folded: so it is noticed if the planner
 * executes such a function, and the generic plan is then its session's only.
 *
 * The environment is read when a statement is looked up for the first time since
 * its session came.  Usually nothing was set since the session was put in place:
 * then it is a function of the version of its context, and kept by it.  Whatever
 * sets something is noticed (statement_notice.c), and what analysis and planning
 * have made up to then is told apart from what they make afterwards (the
 * epoch): SET LOCAL is undone at the transaction's end, a function's SET clause at its
 * return, both without a sign of their own, but their beginnings and ends are
 * known.  The server's own code takes another role without any sign, the owner's of a
 * table (SetUserIdAndSecContext: foreign keys' actions, and so the triggers they
 * fire, REFRESH, ANALYZE, CREATE INDEX); so the role is looked at as statements are
 * looked up, and at each analysis' end and planning's beginning.  From 17 on some of that
 * sets the search path likewise, which plancache.c compares by itself.  Only set_config() is announced earlier than it sets, so nothing is
 * told apart between the two.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_proc.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "optimizer/planner.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "context_guc.h"
#include "context_placeholders.h"
#include "guc_table.h"
#include "pooled_state.h"
#include "statement_environment.h"

/* A parameter's value, where it is. */
typedef struct Setting
{
	enum config_type type;
	void	   *variable;
} Setting;

/* What a version of a session's context makes of the environment. */
typedef struct KnownEnvironment
{
	uint64		version;
	TimestampTz reload;
	Oid			user;
	uint64		environment;
} KnownEnvironment;

#define KNOWN_ENVIRONMENTS 512

static BatonPlacedEnvironment *const placed = &BatonPlaced.environment;

static Setting *settings = NULL;
static int	setting_count = 0;
static uint64 known_table = 0;
static uint64 known_changes = 0;
static KnownEnvironment *known = NULL;

static void (*before_change) (void) = NULL;

/* What neither analysis nor planning looks at, in the groups that are taken. */
static bool
is_indifferent(const struct config_generic *record)
{
	static const char *const names[] = {
		"client_encoding", "default_transaction_deferrable",
		"default_transaction_isolation", "default_transaction_read_only",
		"idle_in_transaction_session_timeout", "idle_session_timeout",
		"lock_timeout", "seed", "statement_timeout",
		"transaction_deferrable", "transaction_isolation",
		"transaction_read_only"
	};

	for (int i = 0; i < (int) lengthof(names); i++)
		if (strcmp(record->name, names[i]) == 0)
			return true;
	return strncmp(record->name, "pg_baton.", strlen("pg_baton.")) == 0;
}

static bool
is_taken(const struct config_generic *record)
{
	if (record->context != PGC_USERSET && record->context != PGC_SUSET)
		return false;
	if (record->flags & GUC_CUSTOM_PLACEHOLDER)
		return false;
	return !baton_guc_is_aside(record) && !is_indifferent(record);
}

static void *
variable_of(struct config_generic *record)
{
	switch (record->vartype)
	{
		case PGC_BOOL:
			return ((struct config_bool *) record)->variable;
		case PGC_INT:
			return ((struct config_int *) record)->variable;
		case PGC_REAL:
			return ((struct config_real *) record)->variable;
		case PGC_STRING:
			return ((struct config_string *) record)->variable;
		case PGC_ENUM:
			return ((struct config_enum *) record)->variable;
	}
	return NULL;
}

static void
find_settings(void)
{
	struct config_generic **records;
	int			count;

	records = baton_guc_records(&count);
	if (settings != NULL)
		pfree(settings);
	settings = NULL;
	setting_count = 0;
	settings = MemoryContextAlloc(TopMemoryContext, count * sizeof(Setting));
	for (int i = 0; i < count; i++)
	{
		if (is_taken(records[i]))
		{
			settings[setting_count].type = records[i]->vartype;
			settings[setting_count].variable = variable_of(records[i]);
			setting_count++;
		}
	}
	known_changes = baton_placeholder_changes;
	known_table = baton_guc_table_version();
}

static inline uint64
mix(uint64 sum, uint64 value)
{
	sum = (sum ^ value) * UINT64CONST(0x9E3779B97F4A7C15);
	return sum ^ (sum >> 29);
}

static void
look_for_settings(void)
{
	if (settings == NULL || known_changes != baton_placeholder_changes ||
		known_table != baton_guc_table_version())
		find_settings();
}

static uint64
read_environment(void)
{
	uint64		sum = 0;

	look_for_settings();
	for (int i = 0; i < setting_count; i++)
	{
		void	   *variable = settings[i].variable;

		switch (settings[i].type)
		{
			case PGC_BOOL:
				sum = mix(sum, *(bool *) variable);
				break;
			case PGC_INT:
			case PGC_ENUM:
				sum = mix(sum, (uint64) *(int *) variable);
				break;
			case PGC_REAL:
				{
					uint64		bits;

					memcpy(&bits, variable, sizeof(bits));
					sum = mix(sum, bits);
					break;
				}
			case PGC_STRING:
				{
					const char *text = *(char **) variable;

					sum = mix(sum, text == NULL ? 1 :
							  hash_bytes_extended((const unsigned char *) text,
												  strlen(text), 0));
					break;
				}
		}
	}
	return sum;
}

/* plancache.c compares it as a part of the search path. */
static bool
temporary_namespace_is_shown(void)
{
	Oid			namespace;
	Oid			toast_namespace;

	GetTempNamespaceState(&namespace, &toast_namespace);
	return OidIsValid(namespace);
}

void
baton_environment_look_at_role(void)
{
	Oid			user = GetUserId();

	if (user == placed->epoch_user)
		return;
	if (OidIsValid(placed->epoch_user))
		baton_environment_changes();
	placed->epoch_user = user;
}

StatementEnvironment
baton_statement_environment(void)
{
	KnownEnvironment *entry = NULL;
	uint64		environment;
	StatementEnvironment result;

	baton_environment_look_at_role();
	if (known == NULL)
		known = MemoryContextAllocZero(TopMemoryContext,
									   KNOWN_ENVIRONMENTS * sizeof(KnownEnvironment));
	if (!placed->has_changed && placed->installed_version != 0)
		entry = &known[placed->installed_version % KNOWN_ENVIRONMENTS];
	if (entry != NULL && entry->version == placed->installed_version &&
		entry->reload == PgReloadTime && entry->user == GetUserId())
		environment = entry->environment;
	else
	{
		environment = read_environment();
		if (entry != NULL)
		{
			entry->version = placed->installed_version;
			entry->reload = PgReloadTime;
			entry->user = GetUserId();
			entry->environment = environment;
		}
	}
	if (temporary_namespace_is_shown())
		environment = mix(environment, 1);
	if (baton_may_have_temporary_objects())
		environment = mix(environment, baton_session_held());
	result.number = environment;
	result.role = GetUserId();
	return result;
}

void
baton_environment_watch(void (*before) (void))
{
	before_change = before;
}

void
baton_environment_install(uint64 context_version, bool same)
{
	if (!same || placed->has_changed || placed->is_volatile)
		BatonPlaced.environment.epoch = ++placed->last_epoch;
	placed->installed_version = context_version;
	placed->epoch_user = InvalidOid;
	placed->has_changed = false;
	placed->is_volatile = false;
}

void
baton_environment_changes(void)
{
	if (before_change != NULL)
		before_change();
	placed->has_changed = true;
	if (!placed->is_volatile)
		BatonPlaced.environment.epoch = ++placed->last_epoch;
}

void
baton_environment_is_volatile(void)
{
	baton_environment_changes();
	placed->is_volatile = true;
	BatonPlaced.environment.epoch = 0;
}

void
baton_environment_is_stable(void)
{
	if (!placed->is_volatile)
		return;
	placed->is_volatile = false;
	BatonPlaced.environment.epoch = ++placed->last_epoch;
}

/*
 * Before the settings go back to what they were (AtEOXact_GUC comes later, in
 * CommitTransaction() and AbortTransaction(), xact.c).
 */
void
baton_environment_transaction(void)
{
	if (placed->has_changed)
		baton_environment_changes();
}
