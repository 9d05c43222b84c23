/*-------------------------------------------------------------------------
 *
 * client_ticket.c
 *		A starting backend takes the client's own socket, before it
 *		authenticates.
 *
 * A client whom the dispatcher cannot serve itself (replication, a method of
 * pg_hba.conf that only the server knows, ...) gets a backend of its own.  The
 * dispatcher connects to the postmaster and sends the client's own startup
 * packet, byte for byte, with one protocol option before all others, whose name
 * carries a ticket.  The server reads the packet as it would have read it from
 * the client, does not know the option, and answers it with
 * NegotiateProtocolVersion (see opening.c), as the first thing that it
 * sends.  Here that message is caught, and the ticket read from it; the backend
 * asks the dispatcher for the client's socket over the control socket, puts it
 * in the place of its own, and goes on: with the client's address, and
 * with everything that the server does for any client, from the checks of the
 * packet to the last word of the session.
 *
 * Three kinds of ticket: a native one makes an ordinary connection for life.  So
 * does one for GSSAPI encryption, whose packet comes from the client only
 * when that has begun (gss_startup.c).  One for a login ends with AuthenticationOk: the backend says so in place of
 * sending it, and exits, and the dispatcher goes on as if it had asked for a
 * password itself.  Up to there all is the server's: methods, hooks, time limit,
 * errors, log.  Of what the client sends such a backend reads only what it has
 * asked for (ticket_message.c): the rest is the session's.
 *
 * Whose turn it is, the dispatcher is told (AWAITS_CLIENT): it takes the process
 * from a client that owes an answer when others wait for one, and never from a client for whom
 * the server asks somebody else.  So every answer is awaited here, before the
 * server reads it: all of it, or where it is encrypted its first byte.
 *
 * Who may do so: whoever knows a ticket that the dispatcher has just written to
 * CONTROL; a client's own packet comes after our option, and of all names only
 * the first is looked at.  The dispatcher gives each ticket's client out once.
 *
 * A client that came by TLS has a relay between (docs/design/tls.md).  As in
 * opening.c, the backend says ssl_in_use only while check_hba() and what
 * comes before the first message look at it: secure_read() and secure_write()
 * would take it at its word.
 *
 * Channel binding needs ssl_in_use again: scram_init() and
 * read_client_first_message() (auth-scram.c, 15 to 18) look at it once the client
 * has answered.  So where it is offered the answer is read before the server
 * asks for it, and then, with nothing to be read or written up to the server's
 * next message, ssl_in_use is true as long.  shown_certificate.c has what is bound
 * to.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/socket.h>
#include <unistd.h>
#include <fcntl.h>

#include "common/ip.h"
#include "libpq/libpq.h"
#include "libpq/libpq-be.h"
#include "libpq/pqcomm.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "port/pg_bswap.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "backend_entry.h"
#include "channel.h"
#include "client_identity.h"
#include "client_port.h"
#include "client_ticket.h"
#include "control.h"
#include "gss_startup.h"
#include "keepalive.h"
#include "majors.h"
#include "parameters.h"
#include "pid_tls.h"
#include "shown_certificate.h"
#include "ticket_message.h"
#include "wire.h"

/* Ends with the ticket, in 16 digits. */
#define TICKET_OPTION "_pq_.pg_baton."

#define CHANNEL_BINDING "SCRAM-SHA-256-PLUS"

/* Authentication requests (libpq/pqcomm.h; protocol.h since 17) */
#define REQUEST_OK 0
#define REQUEST_PASSWORD 3
#define REQUEST_MD5 5
#define REQUEST_GSS 7
#define REQUEST_SASL 10
#define REQUEST_SASL_CONTINUE 11
#define REQUEST_NONE PG_UINT32_MAX

static const PQcommMethods *server_methods = NULL;
static PQcommMethods methods;

/*
 * The connection to the dispatcher; -1: this backend has no ticket.  It stays
 * open as long as the process: its end is how the dispatcher learns of that.
 */
static int	dispatcher = -1;
static uint32 kind = BATON_TICKET_NATIVE;
static bool is_relayed = false;

/* There is a certificate to bind to; and the client has been offered to. */
static bool may_bind = false;
static bool binds = false;

/* AuthenticationOk has been sent. */
static bool is_in = false;

/* What the client has been asked for and has not been told yet. */
static uint32 asked = REQUEST_NONE;

/* The ticket of that option; 0 if it is none that the dispatcher has given. */
static uint64
read_ticket(const char *name)
{
	unsigned long long ticket;
	int			read = 0;

	if (BatonControlMemory == NULL ||
		strncmp(name, TICKET_OPTION, strlen(TICKET_OPTION)) != 0)
		return 0;
	name += strlen(TICKET_OPTION);
	if (strlen(name) != 16 || strspn(name, "0123456789abcdef") != 16 ||
		sscanf(name, "%16llx%n", &ticket, &read) != 1 || read != 16 || ticket == 0 ||
		pg_atomic_read_u64(baton_atomic_u64(BatonControlMemory->tickets[ticket % BATON_TICKETS])) != ticket)
		return 0;
	return ticket;
}

/* Asks for the ticket's client.  Errors go to the dispatcher's connection. */
static void
ask_for_client(uint64 ticket, BatonIncoming *client)
{
	StringInfoData hello;

	dispatcher = baton_channel_connect();
	if (dispatcher < 0)
		ereport(FATAL,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not connect to pg_baton's dispatcher: %m")));
	ReserveExternalFD();

	initStringInfo(&hello);
	baton_wire_u32(&hello, BATON_LAYOUT_VERSION);
	baton_wire_u64(&hello, ticket);
	baton_wire_u32(&hello, (uint32) MyProcPid);
	if (!baton_channel_send(dispatcher, BATON_MSG_HELLO_TICKET, 0, hello.data, hello.len) ||
		baton_channel_await(dispatcher, client) != BATON_RECEIVED_FRAME ||
		client->frame.type != BATON_MSG_CLIENT || client->descriptor_count != 1)
		ereport(FATAL,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("pg_baton's dispatcher has not given the client it has a ticket for")));
	pfree(hello.data);
}

/*
 * The client's socket takes the place of our own.  FeBeWaitSet knows open files,
 * not numbers, and the postmaster may not have closed its copy of ours yet: so
 * it is made anew, as pq_init() (pqcomm.c) has made it.
 */
static void
put_socket(int client)
{
	FreeWaitEventSet(FeBeWaitSet);
	if (dup2(client, MyProcPort->sock) < 0)
		elog(FATAL, "could not put a client socket in place: %m");
	close(client);
	(void) fcntl(MyProcPort->sock, F_SETFD, FD_CLOEXEC);
	if (!pg_set_noblock(MyProcPort->sock))
		elog(FATAL, "could not set socket to nonblocking mode: %m");
	FeBeWaitSet = baton_wait_set_create(FeBeWaitSetNEvents);
	AddWaitEventToSet(FeBeWaitSet, WL_SOCKET_WRITEABLE, MyProcPort->sock, NULL, NULL);
	AddWaitEventToSet(FeBeWaitSet, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(FeBeWaitSet, WL_POSTMASTER_DEATH, PGINVALID_SOCKET, NULL, NULL);
}

/* Where the client is, as BackendInitialize() has found it of our own socket. */
static void
read_addresses(const Port *port, BatonWireReader *in)
{
	BatonPortEnd remote;
	BatonPortEnd local;
	uint8		remote_address[16];
	uint8		local_address[16];
	char		host_name[NI_MAXHOST];
	char		port_name[NI_MAXSERV];

	local.family = remote.family = baton_wire_read_u16(in);
	remote.port = baton_wire_read_u16(in);
	local.scope = remote.scope = baton_wire_read_u32(in);
	baton_wire_read(in, remote_address, sizeof(remote_address));
	remote.address = remote_address;
	local.port = baton_wire_read_u16(in);
	baton_wire_read(in, local_address, sizeof(local_address));
	local.address = local_address;

	baton_port_set_ends(&remote, &local);
	host_name[0] = port_name[0] = '\0';
	(void) pg_getnameinfo_all(&port->raddr.addr, port->raddr.salen, host_name, sizeof(host_name),
							  port_name, sizeof(port_name), NI_NUMERICHOST | NI_NUMERICSERV);
	baton_port_set_remote_text(MemoryContextStrdup(TopMemoryContext, host_name),
							   MemoryContextStrdup(TopMemoryContext, port_name));
}

/* A text that BatonTls has room for. */
static void
read_text(BatonWireReader *in, uint8 *to, Size size)
{
	char	   *text = baton_wire_read_string(in);

	strlcpy((char *) to, text !=NULL ? text : "", size);
}

/* What is known of the client's TLS, which its relay has. */
static void
read_security(Port *port, BatonWireReader *in)
{
	char	   *common_name;
	char	   *distinguished_name;
	bool		has_certificate;
	uint32		length;
	const char *certificate;

	is_relayed = baton_wire_read_u8(in) != 0;
	has_certificate = baton_wire_read_u8(in) != 0;
	common_name = baton_wire_read_string(in);
	distinguished_name = baton_wire_read_string(in);
	if (common_name == NULL || distinguished_name == NULL)
	{
		in->bad = true;
		return;
	}
	if (has_certificate)
		baton_port_set_certificate(true,
								   common_name[0] == '\0' ? NULL :
								   MemoryContextStrdup(TopMemoryContext, common_name),
								   MemoryContextStrdup(TopMemoryContext, distinguished_name));

	length = baton_wire_read_u32(in);
	certificate = in->at;
	if (in->bad || length > (Size) (in->end - in->at))
	{
		in->bad = true;
		return;
	}
	in->at += length;
	if (is_relayed)
		may_bind = baton_certificate_put(port, certificate, length);

	baton_relayed_tls.in_use = is_relayed;
	baton_relayed_tls.bits = baton_wire_read_u32(in);
	read_text(in, baton_relayed_tls.version, sizeof(baton_relayed_tls.version));
	read_text(in, baton_relayed_tls.cipher, sizeof(baton_relayed_tls.cipher));
	read_text(in, baton_relayed_tls.client_dn, sizeof(baton_relayed_tls.client_dn));
	read_text(in, baton_relayed_tls.client_serial, sizeof(baton_relayed_tls.client_serial));
	read_text(in, baton_relayed_tls.issuer_dn, sizeof(baton_relayed_tls.issuer_dn));
}

/* What a new TCP connection of the server's own gets from the parameters. */
static void
set_keepalives(Port *port)
{
	if (is_relayed || port->laddr.addr.ss_family == AF_UNIX)
		return;
	/* a failure is in the log; the server goes on, too */
	(void) pq_setkeepalivesidle(tcp_keepalives_idle, port);
	(void) pq_setkeepalivesinterval(tcp_keepalives_interval, port);
	(void) pq_setkeepalivescount(tcp_keepalives_count, port);
	(void) pq_settcpusertimeout(tcp_user_timeout, port);
}

/*
 * What there is to tell the client of its own: that its version is newer than
 * the server's, or which of its options are not known.  A login's client is told
 * by the dispatcher.
 */
static void
tell_client(const char *body, size_t length, size_t own_length)
{
	const size_t header = 2 * sizeof(uint32);
	uint32		names;
	StringInfoData rest;

	memcpy(&names, body + sizeof(uint32), sizeof(names));
	names = pg_ntoh32(names) - 1;
	if (kind == BATON_TICKET_LOGIN ||
		(names == 0 &&
		 PG_PROTOCOL_MINOR(MyProcPort->proto) <= PG_PROTOCOL_MINOR(PG_PROTOCOL_LATEST)))
		return;

	names = pg_hton32(names);
	initStringInfo(&rest);
	appendBinaryStringInfo(&rest, body, sizeof(uint32));
	appendBinaryStringInfo(&rest, (char *) &names, sizeof(names));
	appendBinaryStringInfo(&rest, body + header + own_length, length - header - own_length);
	(void) server_methods->putmessage('v', rest.data, rest.len);
	pfree(rest.data);
}

/* An ordinary connection from here on. */
static void
let_go(void)
{
	if (PqCommMethods == &methods)
		PqCommMethods = server_methods;
}

/* How pg_stat_gssapi would show it. */
static void
write_gss(StringInfo out)
{
	const char *principal = NULL;
	bool		by_gss = false;

#ifdef ENABLE_GSS
	by_gss = be_gssapi_get_auth(MyProcPort);
	principal = be_gssapi_get_princ(MyProcPort);
#endif
	baton_wire_u8(out, by_gss ? 1 : 0);
	baton_wire_string(out, principal != NULL ? principal : "");
}

/* What SYSTEM_USER would say. */
static void
write_identity(StringInfo out)
{
	const char *method;
	const char *identity = baton_client_identity(&method);

	baton_wire_u8(out, identity != NULL ? 1 : 0);
	baton_wire_string(out, method);
	baton_wire_string(out, identity != NULL ? identity : "");
}

/* The server lets the client in.  The dispatcher does the rest. */
static void
finish_login(void)
{
	StringInfoData how;

	(void) server_methods->flush();

	/* more than one message of GSSAPI's was read without us */
	if (baton_input_is_buffered())
		ereport(FATAL,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("received data before authentication was over")));

	/*
	 * Switched on a moment ago, and the dispatcher has not heard of it: this
	 * is not the role that it would let in.
	 */
	if (baton_user_namespaces())
		ereport(FATAL,
				(errcode(ERRCODE_CANNOT_CONNECT_NOW),
				 errmsg("parameter \"%s\" has just been switched on", "db_user_namespace"),
				 errhint("Connect again.")));
	initStringInfo(&how);
	write_gss(&how);
	write_identity(&how);
	(void) baton_channel_send(dispatcher, BATON_MSG_AUTHENTICATED, 0, how.data, how.len);
	proc_exit(0);
}

/*
 * BackendKeyData is next: who the session is, is known by now, and a transaction
 * can be begun.  (BeginReportingGUCOptions() may be within a scan of the
 * parameters, which a transaction would end.)  May there be one more of its user
 * and from its address?  A dispatcher that has gone says nothing.
 */
static void
begin_native(void)
{
	const char *superuser = GetConfigOption("is_superuser", true, false);
	StringInfoData who;
	BatonIncoming answer;
	BatonWireReader in;
	char	   *why;
	char	   *detail;

	let_go();
	if (baton_relayed_tls.in_use)
		baton_entry_set_tls(&baton_relayed_tls);
	initStringInfo(&who);
	baton_wire_u32(&who, GetAuthenticatedUserId());
	baton_wire_u8(&who, superuser != NULL && strcmp(superuser, "on") == 0);
	if (!baton_channel_send(dispatcher, BATON_MSG_NATIVE_IN, 0, who.data, who.len) ||
		baton_channel_await(dispatcher, &answer) != BATON_RECEIVED_FRAME)
		return;
	baton_incoming_close(&answer);
	pfree(who.data);
	in.at = answer.payload;
	in.end = answer.payload + answer.frame.length;
	in.bad = answer.frame.type != BATON_MSG_NATIVE_ANSWER;
	why = baton_wire_read_string(&in);
	detail = baton_wire_read_string(&in);
	if (!in.bad && why != NULL && detail != NULL && why[0] != '\0')
		ereport(FATAL,
				(errcode(ERRCODE_TOO_MANY_CONNECTIONS),
				 errmsg("%s", why),
				 errdetail("%s", detail)));
}

/* It is the client's turn, or no longer. */
static void
tell_turn(bool is_client_s)
{
	char		turn = is_client_s ? 1 : 0;

	/* one that has gone takes nothing away any more */
	(void) baton_channel_send(dispatcher, BATON_MSG_AWAITS_CLIENT, 0, &turn, 1);
}

/* Waits for the answer; true if all of it is in pqcomm.c's buffer. */
static bool
await_answer(void)
{
	bool		is_whole = false;

	tell_turn(true);
	if (kind == BATON_TICKET_GSS)
	{
		pq_startmsgread();
		(void) pq_peekbyte();
		pq_endmsgread();
	}
	else
		is_whole = baton_ticket_message_await();
	tell_turn(false);
	return is_whole;
}

/* What the server has to say up to BackendKeyData. */
static int
ticket_message(char type, const char *body, size_t length)
{
	const size_t offered = strlen(CHANNEL_BINDING) + 1;
	bool		is_request = type == 'R' && length >= sizeof(asked);

	baton_ticket_message_end();
	baton_port_claim_tls(false);
	if (is_request)
	{
		memcpy(&asked, body, sizeof(asked));
		asked = pg_ntoh32(asked);
	}
	if (is_request && asked == REQUEST_OK)
	{
		baton_certificate_remove(MyProcPort);
		if (kind == BATON_TICKET_LOGIN)
			finish_login();
		is_in = true;
	}
	else if (is_in && type == 'K')
		begin_native();
	else if (is_request && asked == REQUEST_SASL && length > sizeof(asked) + offered &&
			 memcmp(body + sizeof(asked), CHANNEL_BINDING, offered) == 0)
	{
		char	   *rest;
		int			result;

		binds = may_bind;
		if (binds)
			return server_methods->putmessage(type, body, length);
		rest = palloc(length - offered);
		memcpy(rest, body, sizeof(asked));
		memcpy(rest + sizeof(asked), body + sizeof(asked) + offered,
			   length - sizeof(asked) - offered);
		result = server_methods->putmessage(type, rest, length - offered);
		pfree(rest);
		return result;
	}
	return server_methods->putmessage(type, body, length);
}

/* Does the client answer that, and the server read one message then? */
static bool
is_answered(uint32 request)
{
	switch (request)
	{
		case REQUEST_PASSWORD:
		case REQUEST_MD5:
		case REQUEST_GSS:
		case REQUEST_SASL:
		case REQUEST_SASL_CONTINUE:
			return true;
		default:
			/* GSSAPI goes on with or without an answer */
			return false;
	}
}

static int
ticket_flush(void)
{
	bool		awaits = is_answered(asked);
	bool		is_whole;
	int			result;

	asked = REQUEST_NONE;
	baton_ticket_message_end();
	result = server_methods->flush();
	if (result == 0 && awaits)
	{
		is_whole = await_answer();
		baton_port_claim_tls(is_whole && binds);
	}
	return result;
}

bool
baton_ticket_take(const char *body, size_t length)
{
	const size_t header = 2 * sizeof(uint32);	/* version, number of names */
	const char *name = body + header;
	uint64		ticket;
	BatonIncoming client;
	BatonWireReader in;

	/* names end with a zero byte each (SendNegotiateProtocolVersion) */
	if (length <= header || memchr(name, '\0', length - header) == NULL)
		return false;
	ticket = read_ticket(name);
	if (ticket == 0)
		return false;

	ask_for_client(ticket, &client);
	in.at = client.payload;
	in.end = client.payload + client.frame.length;
	in.bad = false;
	kind = baton_wire_read_u32(&in);
	read_addresses(MyProcPort, &in);
	read_security(MyProcPort, &in);
	if (in.bad)
		elog(FATAL, "pg_baton's dispatcher is of another version");
	put_socket(client.descriptors[0]);
	set_keepalives(MyProcPort);

	server_methods = PqCommMethods;
	methods = *server_methods;
	methods.putmessage = ticket_message;
	methods.flush = ticket_flush;
	if (kind == BATON_TICKET_GSS)
		baton_gss_startup(dispatcher);
	else
		tell_client(body, length, strlen(name) + 1);
	PqCommMethods = &methods;
	/* not before: an error would be sent by a TLS session that has no socket */
	baton_port_claim_tls(is_relayed);
	return true;
}

void
baton_ticket_authenticated(void)
{
	Port	   *port = MyProcPort;

	if (dispatcher < 0)
		return;
	baton_port_claim_tls(false);
	baton_port_forget_certificate();
	baton_certificate_remove(port);

	/* these options are a client's, who is not the dispatcher */
	if (port->cmdline_options != NULL && strstr(port->cmdline_options, BATON_ATTACH_OPTION) != NULL)
		ereport(FATAL,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("parameter \"%s\" cannot be set by a client", "pg_baton.attach")));
	if (is_relayed && baton_keepalive_attach() == NULL)
		baton_keepalive_relayed(true);
}
