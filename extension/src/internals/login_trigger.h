/*-------------------------------------------------------------------------
 *
 * login_trigger.h
 *		Event triggers on login, which came with PostgreSQL 17.
 *
 * Before, there are none.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_LOGIN_TRIGGER_H
#define BATON_LOGIN_TRIGGER_H

#include "catalog/pg_database.h"

/* None shall fire for the backend's own start, which is nobody's login. */
extern void baton_login_triggers_hold(void);

/* Checks that, when it has started: NULL, or what is not as expected. */
extern const char *baton_login_triggers_attach(void);

/* Does the row of a database say that it has any? */
extern bool baton_login_triggers_marked(Form_pg_database database);

/* Has this database any?  In a transaction. */
extern bool baton_login_triggers_exist(void);

/* Fires them; outside a transaction.  ereport(ERROR)s as they do. */
extern void baton_login_triggers_fire(void);

/* Is that where event triggers are, and may one be of this kind? */
extern bool baton_may_be_login_trigger(Oid catalog);

#endif							/* BATON_LOGIN_TRIGGER_H */
