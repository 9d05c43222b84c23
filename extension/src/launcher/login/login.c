/*-------------------------------------------------------------------------
 *
 * login.c
 *		The dispatcher's questions about clients that log in.
 *
 * The dispatcher exchanges the messages with the client; this code decides,
 * from the server's own catalogs and pg_hba.conf, with the server's own
 * messages (in the server's translations, too: _() looks into its catalog).
 * The checks are those of ClientAuthentication, InitializeSessionUserId and
 * InitPostgres with CheckMyDatabase, in that order.
 *
 * No row that is partly in a TOAST table can be read here (catalog_watch.c
 * says why), and the attempt would end the launcher.  So no catalog cache of
 * roles or databases is asked for a row.  What only such a row can tell is
 * left to the pool's backend, which logs in as the same role and then greets
 * the session itself (ask_backend).
 *
 * A role that does not exist takes the same path as an existing role:
 * look-up, pg_hba.conf, and the same fields in the answer.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "commands/user.h"
#include "common/ip.h"
#include "libpq/crypt.h"
#include "libpq/pqcomm.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "pg_port.h"
#include "database_access.h"
#include "dispatcher_link.h"
#include "hba_match.h"
#include "login.h"
#include "pg_process.h"
#include "majors.h"
#include "parameters.h"
#include "pool_settings.h"
#include "catalog_watch.h"
#include "pg_hba.h"

typedef BatonLoginAnswer Answer;

typedef struct Question
{
	BatonLoginQuestion asked;
	const char *user;			/* both names truncated as
								 * ProcessStartupPacket does */
	const char *database;
	SockAddr	address;
} Question;

static bool
read_question(const char *bytes, Size length, Question *question)
{
	BatonWireReader in = {.at = bytes,.end = bytes + length,.bad = false};
	BatonLoginQuestion *asked = &question->asked;

	baton_read_login_question(&in, asked);
	if (in.bad)
		return false;
	question->user = pnstrdup(asked->user, NAMEDATALEN - 1);
	question->database = pnstrdup(asked->database, NAMEDATALEN - 1);
	return baton_address_make(&question->address, asked->is_host ? asked->family : AF_UNIX,
							  asked->port, asked->peer_address.bytes, 0);
}

static void
refuse(Answer *answer, int code, const char *message)
{
	answer->refusal_sqlstate = pstrdup(unpack_sql_state(code));
	answer->refusal_message = message;
}

/*
 * The role, and its verifier as get_role_password (crypt.c) returns it: none
 * if the password has expired, since no password is right then.
 */
static void
look_up_role(const Question *question, Answer *answer, BatonRole *role)
{
	if (!baton_role_by_name(question->user, role))
		return;

	answer->role = role->oid;
	answer->superuser = role->superuser;
	answer->password_expired = role->expires && role->valid_until < GetCurrentTimestamp();
	if (role->expires && !answer->password_expired)
		answer->good_until = role->valid_until;
	if (role->verifier != NULL && !answer->password_expired)
		answer->verifier = role->verifier;
}

/* In the server the attempt to read such a role ends the backend. */
static void
refuse_unreadable(const Question *question, Answer *answer)
{
	answer->method = BATON_AUTH_REJECT;
	answer->refuse_first = true;
	refuse(answer, ERRCODE_PROGRAM_LIMIT_EXCEEDED,
		   psprintf("password verifier of role \"%s\" is too long", question->user));
	answer->refusal_detail = "It cannot be read before a database is selected; the server's own port refuses this role as well.";
	answer->refusal_hint = "Set the role's password again.";
}

/* No line of pg_hba.conf admits the client; texts of ClientAuthentication. */
static void
refuse_by_hba(const Question *question, Answer *answer, bool by_line)
{
	char		host[NI_MAXHOST];
	const char *encryption = question->asked.is_secure ? _("SSL encryption") : _("no encryption");

	pg_getnameinfo_all(&question->address.addr, question->address.salen,
					   host, sizeof(host), NULL, 0, NI_NUMERICHOST);
	answer->method = BATON_AUTH_REJECT;
	answer->method_name = "reject";
	answer->refuse_first = true;
	refuse(answer, ERRCODE_INVALID_AUTHORIZATION_SPECIFICATION,
		   by_line ?
		   psprintf(_("pg_hba.conf rejects connection for host \"%s\", user \"%s\", database \"%s\", %s"),
					host, question->user, question->database, encryption) :
		   psprintf(_("no pg_hba.conf entry for host \"%s\", user \"%s\", database \"%s\", %s"),
					host, question->user, question->database, encryption));
}

/*
 * What a line demands of a client's certificate before anything else, as in
 * ClientAuthentication.  Returns false if the client is refused.
 */
static bool
check_certificate(const Question *question, Answer *answer, const HbaLine *line)
{
	if (line->clientcert == clientCertOff)
		return true;
	if (question->asked.has_ca && question->asked.has_certificate)
		return true;
	answer->method = BATON_AUTH_REJECT;
	answer->refuse_first = true;
	if (!question->asked.has_ca)
		refuse(answer, ERRCODE_CONFIG_FILE_ERROR,
			   _("client certificates can only be checked if a root certificate store is available"));
	else
		refuse(answer, ERRCODE_INVALID_AUTHORIZATION_SPECIFICATION,
			   _("connection requires a valid client certificate"));
	return false;
}

/*
 * Is the certificate this role's (CheckCertAuth in auth.c)?  If not, the
 * method has failed, with the method's own words (auth_failed).
 * ClientAuthentication_hook of other libraries is called for that, as for a
 * wrong password: so where backends authenticate, a backend refuses such a
 * client, and writes the log.
 */
static void
check_certificate_name(const Question *question, Answer *answer, const HbaLine *line)
{
	const char *name = line->clientcertname == clientCertDN ?
	question->asked.distinguished_name : question->asked.common_name;
	bool		is_server_s = baton_server_authenticates() || answer->method == BATON_AUTH_BY_SERVER;
	int			level = is_server_s ? DEBUG1 : LOG;

	if (line->clientcert != clientCertFull || answer->refuse_first)
		return;
	if (name[0] == '\0')
		ereport(level,
				(errmsg("certificate authentication failed for user \"%s\": client certificate contains no user name",
						question->user)));
	else if (baton_rules_map(line->usermap, question->user, name))
		return;
	else if (line->auth_method != uaCert)
		ereport(level,
				(errmsg("certificate validation (clientcert=verify-full) failed for user \"%s\": %s mismatch",
						question->user, line->clientcertname == clientCertDN ? "DN" : "CN")));

	if (line->auth_method == uaCert || line->auth_method == uaTrust)
	{
		answer->method = BATON_AUTH_REJECT;
		answer->refuse_method = true;
		refuse(answer, ERRCODE_INVALID_AUTHORIZATION_SPECIFICATION,
			   line->auth_method == uaCert ?
			   psprintf(_("certificate authentication failed for user \"%s\""), question->user) :
			   psprintf(_("\"trust\" authentication failed for user \"%s\""), question->user));
		return;
	}
	answer->refuse_proof = true;
	refuse(answer, ERRCODE_INVALID_PASSWORD,
		   psprintf(_("password authentication failed for user \"%s\""), question->user));
}

/*
 * Why no password is right, for the log: as get_role_password (crypt.c) and
 * scram_init (auth-scram.c) say it.
 */
static void
describe_role(const Question *question, Answer *answer)
{
	const char *text = NULL;

	if (!OidIsValid(answer->role))
		text = _("Role \"%s\" does not exist.");

	else if (answer->password_expired)
		text = _("User \"%s\" has an expired password.");

	else if (answer->verifier[0] == '\0')
		text = _("User \"%s\" has no password assigned.");

	else if (answer->method == BATON_AUTH_SCRAM &&
			 get_password_type(answer->verifier) != PASSWORD_TYPE_SCRAM_SHA_256)
		text = _("User \"%s\" does not have a valid SCRAM secret.");

	if (text !=NULL && (answer->method == BATON_AUTH_SCRAM ||
						answer->method == BATON_AUTH_MD5 ||
						answer->method == BATON_AUTH_PASSWORD))
		answer->role_detail = psprintf(text, question->user);
}

/*
 * The method that the dispatcher carries out.  For "md5" it depends on the
 * verifier, and without a verifier on password_encryption, so that the client
 * of a user that does not exist sees what most others see
 * (CheckPWChallengeAuth in auth.c).
 */
static void
choose_method(const Question *question, Answer *answer)
{
	BatonClient client;
	const HbaLine *line;
	bool		by_host_name;
	bool		by_network;
	bool		by_groups;
	int			type;

	client.address = question->address;
	client.is_secure = question->asked.is_secure;
	client.user = question->user;
	client.database = question->database;
	if (!baton_hba_can_answer(&client))
	{
		answer->method = BATON_AUTH_BY_SERVER;
		answer->good_until = 0;
		return;
	}
	line = baton_hba_match(&client, &by_host_name, &by_network, &by_groups);
	if (by_host_name)
	{
		answer->method = BATON_AUTH_BY_SERVER;
		answer->good_until = 0;
		return;
	}
	if (by_network)
		answer->good_until = 0;
	if (by_groups)
		answer->concerns |= BATON_CONCERNS_MEMBERSHIPS;
	if (line == NULL)
	{
		refuse_by_hba(question, answer, false);
		return;
	}

	answer->method_name = hba_authname(line->auth_method);
	answer->hba_place = baton_rules_line_place(line);
	answer->hba_detail = baton_rules_line_detail(line);
	if (!check_certificate(question, answer, line))
		return;
	switch (line->auth_method)
	{
		case uaReject:
		case uaImplicitReject:
			refuse_by_hba(question, answer, true);
			break;
		case uaTrust:
		case uaCert:
			answer->method = BATON_AUTH_TRUST;
			break;
		case uaPassword:
			answer->method = BATON_AUTH_PASSWORD;
			break;
		case uaSCRAM:
			answer->method = BATON_AUTH_SCRAM;
			break;
		case uaMD5:
			type = answer->verifier[0] != '\0' ?
				(int) get_password_type(answer->verifier) : Password_encryption;
			answer->method = type == PASSWORD_TYPE_MD5 ? BATON_AUTH_MD5 : BATON_AUTH_SCRAM;
			break;
		case uaPeer:
			answer->method = BATON_AUTH_PEER;
			answer->peer_match = question->asked.os_user[0] != '\0' &&
				baton_rules_map(line->usermap, question->user, question->asked.os_user);
			break;
		case uaGSS:
			answer->method = BATON_AUTH_BY_SERVER;
			if (baton_gss_delegates())
				answer->native = BATON_NATIVE_DELEGATION;
			break;
		default:
			answer->method = BATON_AUTH_BY_SERVER;
			break;
	}
	check_certificate_name(question, answer, line);
}

/*
 * Connections of that role or database (the other is InvalidOid) that are not
 * the pool's own backends.  Approximate, as the limits are in the server
 * itself.
 */
static int32
foreign_connections(Oid role, Oid database)
{
	int			count = OidIsValid(role) ? CountUserBackends(role) : CountDBConnections(database);

	for (uint32 i = 0; i < BatonControlMade.backend_slots; i++)
	{
		BatonBackendSlot *slot = baton_backend_slot(i);
		PGPROC	   *proc;

		if (slot->state == BATON_BACKEND_FREE)
			continue;
		/* returns NULL for 0 */
		proc = BackendPidGetProc((int) slot->pid);
		if (proc != NULL &&
			(OidIsValid(role) ? proc->roleId == role : proc->databaseId == database))
			count--;
	}
	return Max(count, 0);
}

/* As InitializeSessionUserId.  Returns false if the role is refused. */
static bool
check_role(const Question *question, Answer *answer, const BatonRole *role)
{
	if (!OidIsValid(answer->role))
	{
		refuse(answer, ERRCODE_INVALID_AUTHORIZATION_SPECIFICATION,
			   psprintf(_("role \"%s\" does not exist"), question->user));
		return false;
	}
	if (!role->can_login)
	{
		refuse(answer, ERRCODE_INVALID_AUTHORIZATION_SPECIFICATION,
			   psprintf(_("role \"%s\" is not permitted to log in"), question->user));
		return false;
	}
	if (role->connection_limit >= 0 && !answer->superuser)
	{
		answer->role_limit = role->connection_limit;
		answer->role_backends = foreign_connections(answer->role, InvalidOid);
	}
	return true;
}

/*
 * Memberships decide.  Up to 15 that also depends on rolinherit of the roles
 * between (roles_is_member_of in acl.c; from 16 on it depends on
 * pg_auth_members).
 */
static uint8
concerns_of_memberships(void)
{
	return BATON_CONCERNS_MEMBERSHIPS | (baton_owner_is_member(false) ? 0 : BATON_CONCERNS_ANY_ROLE);
}

/*
 * If PUBLIC may not connect, a role may by its memberships.  The result must be
 * the same for all roles, or the time of an answer would tell which roles
 * exist.
 */
static uint8
concerns_of_privileges(HeapTuple row)
{
	if (baton_connect_privilege(row, InvalidOid, 0) == BATON_PRIVILEGE_HELD)
		return 0;
	return concerns_of_memberships();
}

/*
 * The pool's console (dispatcher/src/console) needs no database.  A role with
 * more memberships than are read here is refused.
 */
static void
check_console(Answer *answer)
{
	answer->concerns |= concerns_of_memberships();
	if (answer->superuser)
		answer->console = BATON_CONSOLE_ALL;
	else if (baton_role_privilege(answer->role, ROLE_PG_MONITOR,
								  BATON_MEMBERSHIP_ROWS) == BATON_PRIVILEGE_HELD)
		answer->console = BATON_CONSOLE_SHOW;
	else
	{
		refuse(answer, ERRCODE_INSUFFICIENT_PRIVILEGE, "not allowed");
		answer->refusal_detail = "The console is for superusers and for members of pg_monitor.";
	}
}

/* As InitPostgres and CheckMyDatabase. */
static void
check_database(const Question *question, Answer *answer)
{
	HeapTuple	row = baton_database_row(question->database);
	Form_pg_database form;
	BatonPrivilege privilege = BATON_PRIVILEGE_HELD;

	if (!HeapTupleIsValid(row) && strcmp(question->database, BATON_CONSOLE_DATABASE) == 0)
	{
		check_console(answer);
		return;
	}
	if (!HeapTupleIsValid(row))
	{
		refuse(answer, ERRCODE_UNDEFINED_DATABASE,
			   psprintf(_("database \"%s\" does not exist"), question->database));
		return;
	}
	form = (Form_pg_database) GETSTRUCT(row);
	answer->database = form->oid;
	answer->database_hash = GetSysCacheHashValue1(DATABASEOID, ObjectIdGetDatum(form->oid));
	answer->concerns &= ~BATON_CONCERNS_ANY_DATABASE;
	answer->concerns |= concerns_of_privileges(row);

	if (database_is_invalid_form(form))
	{
		refuse(answer, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
			   psprintf(_("cannot connect to invalid database \"%s\""), question->database));
		answer->refusal_hint = _("Use DROP DATABASE to drop invalid databases.");
	}
	else if (!form->datallowconn)
		refuse(answer, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
			   psprintf(_("database \"%s\" is not currently accepting connections"),
						question->database));

	else if (!answer->superuser &&
			 (privilege = baton_connect_privilege(row, answer->role,
												  BATON_MEMBERSHIP_ROWS)) == BATON_PRIVILEGE_MISSING)
	{
		refuse(answer, ERRCODE_INSUFFICIENT_PRIVILEGE,
			   psprintf(_("permission denied for database \"%s\""), question->database));
		answer->refusal_detail = _("User does not have CONNECT privilege.");
	}
	else if (form->datconnlimit >= 0 && !answer->superuser)
	{
		answer->database_limit = form->datconnlimit;
		answer->database_backends = foreign_connections(InvalidOid, form->oid);
	}

	answer->ask_backend = privilege == BATON_PRIVILEGE_UNKNOWN;

	/*
	 * on a standby nothing invalidates kept greetings when a trigger is
	 * created
	 */
	answer->fires_triggers = RecoveryInProgress() && baton_login_triggers_marked(form);
}

static void
init_answer(Answer *answer)
{
	memset(answer, 0, sizeof(*answer));
	answer->method_name = "";
	answer->verifier = "";
	answer->role_limit = -1;
	answer->database_limit = -1;
	answer->max_sessions = -1;
	answer->good_until = PG_INT64_MAX;
	answer->concerns = BATON_CONCERNS_ANY_ROLE | BATON_CONCERNS_ANY_DATABASE |
		BATON_CONCERNS_MEMBERSHIPS;
}

/*
 * Sets for how long the dispatcher may reuse this answer, as long as
 * login_generation stays (catalog_watch.c): for ever, or until the role's
 * VALID UNTIL; never if the answer depends on what changes without notice,
 * such as a name server's reply.  On a standby the startup process changes the
 * catalogs, in which no hook of pg_baton runs.  Counts of connections do not
 * prevent reuse: with a limit the dispatcher asks again after a client has
 * proved its identity, but not for the challenge, which would distinguish such
 * a role from one that does not exist.
 */
static void
limit_answer(Answer *answer)
{
	if (RecoveryInProgress())
		answer->good_until = 0;
}

static void
decide(const Question *question, Answer *answer)
{
	BatonRole	role;

	baton_roles_hold();
	answer->role_hash = GetSysCacheHashValue1(AUTHNAME, CStringGetDatum(question->user));
	answer->concerns &= ~(BATON_CONCERNS_ANY_ROLE | BATON_CONCERNS_MEMBERSHIPS);
	look_up_role(question, answer, &role);
	if (OidIsValid(role.oid) && !role.readable)
		refuse_unreadable(question, answer);
	else
		choose_method(question, answer);
	describe_role(question, answer);
	if (answer->refuse_first || answer->refuse_method)
		answer->verifier = "";	/* the dispatcher does not need it */
	else if (answer->refuse_proof)
	{
		/* the result would not be used */
	}
	else if (check_role(question, answer, &role))
		check_database(question, answer);
	else
	{
		/* takes the time that the check takes for other roles */
		Answer		unused = *answer;

		check_database(question, &unused);
		/* the answer is invalidated when those for other roles are */
		answer->concerns = unused.concerns;
		answer->database_hash = unused.database_hash;
	}
	/* also for a role that does not exist, as it takes its time */
	if (baton_pool_is_native(answer->role, answer->database, &answer->max_sessions,
							 &answer->is_apart))
		answer->native = BATON_NATIVE_POOL_MODE;
	if (answer->console != BATON_CONSOLE_NOT)
		answer->native = BATON_NATIVE_NOT;
	if (answer->native == BATON_NATIVE_NOT && !baton_trusted_hba_works())
		answer->native = BATON_NATIVE_FAILED_CHECK;
	limit_answer(answer);

	/* the answer's own verifier is wiped after sending */
	if (answer->verifier != role.verifier)
		baton_role_wipe(&role);
}

bool
baton_login_answer(const char *bytes, Size length, StringInfo out)
{
	MemoryContext outer_context = CurrentMemoryContext;
	MemoryContext context = AllocSetContextCreate(outer_context, "pg_baton login",
												  ALLOCSET_SMALL_SIZES);
	Question	question;
	Answer		answer;
	bool		understood;

	MemoryContextSwitchTo(context);
	understood = read_question(bytes, length, &question);
	init_answer(&answer);
	if (understood)
	{
		PG_TRY();
		{
			/*
			 * the start processes invalidations: what has committed is
			 * visible
			 */
			SetCurrentStatementStartTimestamp();
			StartTransactionCommand();
			/* as InitPostgres: serializable would fail on a standby */
			XactIsoLevel = XACT_READ_COMMITTED;
			MemoryContextSwitchTo(context);
			baton_settings_standby_look();
			decide(&question, &answer);
			CommitTransactionCommand();
		}
		PG_CATCH();
		{
			bool		lacks_memory = geterrcode() == ERRCODE_OUT_OF_MEMORY;

			HOLD_INTERRUPTS();
			MemoryContextSwitchTo(context);
			EmitErrorReport();
			FlushErrorState();
			AbortCurrentTransaction();
			MemoryContextSwitchTo(context);
			init_answer(&answer);
			answer.method = BATON_AUTH_REJECT;
			answer.refuse_first = true;
			refuse(&answer, lacks_memory ? ERRCODE_OUT_OF_MEMORY : ERRCODE_INTERNAL_ERROR,
				   "could not check who may log in");
			answer.refusal_hint = "See the server's log.";
			answer.good_until = 0;
			RESUME_INTERRUPTS();
		}
		PG_END_TRY();
	}
	MemoryContextSwitchTo(outer_context);
	if (understood)
	{
		answer.request = question.asked.request;
		baton_write_login_answer(out, &answer);
	}
	/* a verifier must not remain in freed memory */
	if (answer.verifier[0] != '\0')
		explicit_bzero(unconstify(char *, answer.verifier), strlen(answer.verifier));
	MemoryContextDelete(context);
	return understood;
}
