/*-------------------------------------------------------------------------
 *
 * statement_description.h
 *		A prepared statement as bytes, and the making of a statement from them.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_STATEMENT_DESCRIPTION_H
#define BATON_STATEMENT_DESCRIPTION_H

#include "access/tupdesc.h"
#include "catalog/namespace.h"
#include "lib/stringinfo.h"
#include "nodes/parsenodes.h"
#include "parser/parse_node.h"
#include "utils/plancache.h"

#include "pg_catalogs.h"

/* ----------------------------------------------------------------
 *		The settings by which the literals of a prepared statement were read.
 * ----------------------------------------------------------------
 */

/*
 * Allocated in the plan's context; the argument of its parser setup callback.
 */
typedef struct PlanSettings
{
	CachedPlanSource *plan;
	const char *settings;		/* those of its analysis, as one string; NULL:
								 * the settings in force will apply */
	bool		shared;			/* settings and path belong to a common
								 * statement */
	bool		armed;			/* not analysed here yet: it will be, under
								 * the settings */
	bool		changed;		/* differs from what baton_settings_changed()
								 * last told */
	BatonSearchPath path;		/* if armed: the search path under which it
								 * was analysed */
} PlanSettings;

/* The settings that input functions look at. */
extern const char *const baton_literal_settings[];
extern const int baton_literal_settings_count;

/* The plan has just been analysed, under the settings in force. */
extern void baton_settings_note(CachedPlanSource *plan);

/* Do its settings differ from last time? */
extern bool baton_settings_changed(CachedPlanSource *plan);

/*
 * A common statement has the described settings and search path for plans that
 * refer to it (session_statements.c). These are analysed under them if the
 * common statement is invalid.
 */
extern void baton_settings_make_common(CachedPlanSource *common);
extern void baton_settings_share(CachedPlanSource *plan, const CachedPlanSource *common);

/* The plan must be analysed again, as the first time. */
extern void baton_settings_rearm(CachedPlanSource *plan, const CachedPlanSource *common);

/* Was the plan analysed under what the common statement describes? */
extern bool baton_settings_fit(const CachedPlanSource *plan, const CachedPlanSource *common);

/* The session discards its plans. */
extern void baton_settings_disarm(CachedPlanSource *plan);

/* Parse analysis of a statement ends (pg_baton.c). */
extern void baton_settings_analysis_ends(const ParseState *pstate);

/* ----------------------------------------------------------------
 *		A prepared statement as bytes: the value of a STATEMENT or UNNAMED item.
 * ----------------------------------------------------------------
 */

/* flags of a description */
#define STATEMENT_FROM_SQL 1
#define STATEMENT_FIXED_RESULT 2
#define STATEMENT_HAS_RESULT 4
#define STATEMENT_OLD_STRINGS 8 /* standard_conforming_strings was off */
#define STATEMENT_EMPTY 16
#define STATEMENT_HAS_SETTINGS 32

/*
 * The head of a description. Followed by: parameter types; if there is a
 * result, a ResultHead and one ResultColumn per column; if there are settings,
 * the search path's schemas and the settings' text with its NUL; the
 * statement's text with its NUL. All are zeroed before they are filled,
 * because equal statements must have equal bytes.
 */
typedef struct DescriptionHead
{
	uint8		format;
	uint8		flags;
	uint8		path_flags;
	uint8		unused;
	int32		cursor_options;
	int32		location;
	int32		length;
	int32		parameters;
	int32		path_schemas;
	int32		settings_length;	/* with NUL; 0: none */
	int32		text_length;	/* with NUL */
} DescriptionHead;

#define PATH_ADD_CATALOG 1
#define PATH_ADD_TEMP 2

/* A parsed description; points into the value where possible. */
typedef struct Description
{
	DescriptionHead head;
	Oid		   *parameter_types;
	TupleDesc	result;
	List	   *path_schemas;
	const char *settings;
	const char *text;
} Description;

/*
 * False if the text is so long that no memory can hold the description, the
 * session's context was too large and can no longer be reported, or no other
 * backend could analyse the statement.
 */
extern bool baton_statement_is_describable(const CachedPlanSource *plan);

/* Appends the description of a plan that is describable. */
extern void baton_statement_describe(StringInfo value,
									 const CachedPlanSource *plan,
									 bool from_sql);

/* What the head of a description says; false if it is not a description. */
extern bool baton_statement_is_from_sql(const char *value, Size length);
extern bool baton_statement_has_settings(const char *value, Size length);

/* While statements are read and made again, only errors are reported. */
typedef struct Quiet
{
	int			client_min_messages;
	int			log_min_messages;
	bool		debug_print_parse;
	bool		debug_print_rewritten;
	bool		log_parser_stats;
} Quiet;

/* ----------------------------------------------------------------
 *		Making a prepared statement from its description.
 * ----------------------------------------------------------------
 */

/*
 * Makes an unsaved plan below the current context, without a transaction and
 * without looking at catalogs. Returns NULL if the description cannot be
 * understood.
 */
extern CachedPlanSource *baton_statement_make(const char *value, Size length,
											  bool *from_sql);

/*
 * Turns a saved plan into the described one, in place. Returns false if that
 * is impossible; the plan is then unchanged.
 */
extern bool baton_statement_refill(CachedPlanSource *plan,
								   const char *value, Size length);

#endif							/* BATON_STATEMENT_DESCRIPTION_H */
