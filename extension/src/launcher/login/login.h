/*-------------------------------------------------------------------------
 *
 * login.h
 *		The dispatcher's questions about clients that log in.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_LOGIN_H
#define BATON_LOGIN_H

#include "lib/stringinfo.h"

/*
 * Answers a LOGIN_QUESTION: appends the LOGIN_ANSWER's payload.  Returns false
 * if the message is not understood.  Runs a transaction of its own; an error
 * within becomes a refusal, and never leaves this function.
 *
 * The order in which the server itself would refuse, and in which the
 * dispatcher therefore evaluates the answer:
 *  1. refuse_before_authentication: the refusal, at once; 3 is the method's
 *     own, which a backend reports where a backend authenticates
 *  2. the method; a role that does not exist fails it at the same cost as
 *     an existing role
 *  3. role_limit against role_backends and its own sessions of that role:
 *     53300 "too many connections for role \"%s\""
 *  4. the refusal, if there is one
 *  5. database_limit likewise: 53300 "too many connections for database
 *     \"%s\""
 *
 * A limit that does not apply, because the user is a superuser or because the
 * refusal comes before it, is sent as -1.
 */
extern bool baton_login_answer(const char *question, Size length, StringInfo answer);

#endif							/* BATON_LOGIN_H */
