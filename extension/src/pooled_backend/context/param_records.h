/*-------------------------------------------------------------------------
 *
 * param_records.h
 *		Which of the server's parameters a session carries, and which of them
 *		hold what was placed for it.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PARAM_RECORDS_H
#define BATON_PARAM_RECORDS_H

#include "lib/ilist.h"

#include "context_guc.h"

/* What stands before the text in a PARAMETER entry's value. */
typedef struct BatonParamHeader
{
	uint8		form;			/* BATON_PARAM_* */
	uint8		scontext;		/* GucContext under which it was set */
	uint8		superuser;		/* role, session_authorization: is it one? */
	uint8		placeholder;	/* was it a placeholder's value? */
	uint32		srole;			/* who set it */
	uint32		role;			/* role, session_authorization: the role */
} BatonParamHeader;

#define BATON_PARAM_VALUE 0		/* the session's own value */
#define BATON_PARAM_EXISTS 1	/* a placeholder without one */
#define BATON_PARAM_SOURCE 2	/* only the source is the session's */

/* How a record is dealt with. */
typedef enum CarryMode
{
	CARRY_NOT,					/* the session cannot change it, or may */
	CARRY_VALUE,
	CARRY_SOURCE,
	CARRY_PLACEHOLDER
} CarryMode;

/* One parameter of the session as it was last placed or captured. */
typedef struct BatonParam
{
	dlist_node	node;			/* in BatonPlaced.params */
	uint64		serial;			/* its entry's, 0 if not known */
	char	   *name;
	struct config_generic *record;
	enum config_type vartype;
	BatonParamHeader header;
	config_var_value value;		/* other than strings */
	char	   *string;			/* the value as text; NULL: none */
	bool		keep;			/* only within install */
} BatonParam;

/* A record to look at, and what is placed in it. */
typedef struct BatonScanEntry
{
	struct config_generic *record;
	BatonParam *param;
	CarryMode	mode;
} BatonScanEntry;

/* All of BatonPlaced.params are in there. */
extern MemoryContext baton_params_context;

extern BatonParam *baton_param_add(struct config_generic *record, const char *name);
extern void baton_param_drop(BatonParam *param);

/*
 * Is all noted that belongs to it?  Not if memory ran out meanwhile; then it
 * is like nothing else.
 */
extern bool baton_param_is_whole(const BatonParam *param);

/* Has the session that is put in place the placeholder, without a value? */
extern bool baton_param_exists(const char *name);

/* By name; and the one of that name, or NULL. */
extern void baton_params_sort(BatonParam **params, int count);
extern BatonParam *baton_params_find(BatonParam **sorted, int count,
									 const char *name, Size length);

/* The records to look at, in the order of their addresses. */
extern BatonScanEntry *baton_scan;
extern int	baton_scan_count;

/* Do the entries' params fit what is placed?  Cleared when that changes. */
extern bool baton_scan_linked;

/* Has the server's table of records changed since baton_scan was made? */
extern bool baton_scan_is_stale(void);

/* Brings baton_scan up to date. */
extern void baton_scan_look(void);

/* As baton_placeholder_create and _hide; baton_scan stays up to date. */
extern struct config_generic *baton_scan_create_placeholder(const char *name);
extern void baton_scan_hide_placeholder(struct config_generic *record);

#endif							/* BATON_PARAM_RECORDS_H */
