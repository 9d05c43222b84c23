/*-------------------------------------------------------------------------
 *
 * settings_watch.h
 *		Noticing ALTER ROLE/DATABASE ... SET.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_SETTINGS_WATCH_H
#define BATON_SETTINGS_WATCH_H

#include "access/htup.h"
#include "access/xact.h"
#include "catalog/objectaccess.h"

#include "utility_statement.h"

/* From the hooks on object access and transactions (hooks.c). */
extern void baton_settings_object_access(ObjectAccessType access, Oid class, Oid object,
										 void *argument);
extern void baton_settings_transaction(XactEvent event);

/* A utility statement begins, which may fail; it has succeeded. */
extern void baton_settings_utility_begins(BatonUtility *utility);
extern void baton_settings_utility_done(const BatonUtility *utility);

/*
 * Backends from before this moment must not serve clients who come later, of
 * this role and this database (InvalidOid: of all).
 */
extern void baton_role_settings_changed(Oid database, Oid role);

/*
 * One number for a row of pg_db_role_setting: where it stands, and which
 * transaction put it there.  Their sum tells whether any has changed.
 */
extern uint64 baton_settings_row_hash(HeapTuple tuple);

#endif							/* BATON_SETTINGS_WATCH_H */
