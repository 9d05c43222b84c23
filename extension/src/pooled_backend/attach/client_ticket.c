/*-------------------------------------------------------------------------
 *
 * client_ticket.c
 *		A starting backend takes the client's own socket, before it
 *		authenticates.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/ip.h"
#include "lib/stringinfo.h"
#include "libpq/libpq-be.h"
#include "libpq/libpq.h"
#include "libpq/pqcomm.h"
#include "libpq/pqformat.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "port/pg_bswap.h"
#include "replication/walsender.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

#include "baton_shared.h"
#include "client_socket.h"
#include "client_ticket.h"
#include "dispatcher_link.h"
#include "majors.h"
#include "parameters.h"
#include "pg_port.h"
#include "pg_process.h"
#include "pid_views.h"

/* ----------------------------------------------------------------
 *		The one message that a backend has asked a client for.
 *
 * pqcomm.c reads all that is available, up to 8 kB. A client may send its
 * first query directly after its password, and a backend that only
 * authenticates would lose the part of it that it has read, because another
 * backend continues the session. So this backend takes the message from the
 * client's socket by its length and passes it to the server through a
 * socketpair that carries nothing else, one end of which replaces port->sock
 * meanwhile.
 *
 * What PostgreSQL guarantees: sendAuthRequest() (auth.c, 15 to 18) flushes
 * each request that is answered. Its callers then read one message with
 * pq_getbyte() and pq_getmessage(), which take what pq_peekbyte() has put into
 * the buffer. secure_raw_read() (be-secure.c) looks at port->sock for each
 * read, and FeBeWaitSet is not used if there is data or EOF.
 * ----------------------------------------------------------------
 */

#define HEADER (1 + sizeof(uint32)) /* type, length */

/* The server accepts no longer message: PG_MAX_AUTH_TOKEN_LENGTH (auth.c). */
#define LONGEST 65535

/* Bytes that are read at once, whatever room pqcomm.c's buffer has (8 kB). */
#define READ_AT_ONCE 4096

/* The client's socket, while another is in its place. */
static pgsocket client = PGINVALID_SOCKET;

/* Waits as secure_read() (be-secure.c) does. */
static void
wait_for_client(void)
{
	WaitEvent	event;

	ModifyWaitEvent(FeBeWaitSet, FeBeWaitSetSocketPos, WL_SOCKET_READABLE, NULL);
	(void) WaitEventSetWait(FeBeWaitSet, -1, &event, 1, WAIT_EVENT_CLIENT_READ);
	if (event.events & WL_POSTMASTER_DEATH)
		ereport(FATAL,
				(errcode(ERRCODE_ADMIN_SHUTDOWN),
				 errmsg("terminating connection due to unexpected postmaster exit")));
	if (event.events & WL_LATCH_SET)
	{
		ResetLatch(MyLatch);
		ProcessClientReadInterrupt(true);
	}
}

/*
 * Reads up to `total` bytes in all; returns false if the client disconnects
 * before.
 */
static bool
receive(StringInfo message, Size total)
{
	enlargeStringInfo(message, (int) total);
	while ((Size) message->len < total)
	{
		ssize_t		length = recv(MyProcPort->sock, message->data + message->len,
								  total - message->len, MSG_DONTWAIT);

		if (length > 0)
			message->len += length;
		else if (length < 0 && errno == EINTR)
			continue;
		else if (length < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			wait_for_client();
		else
			return false;
	}
	return true;
}

/*
 * If a message is not whole, it ends early for the server, too, as in the
 * socket.
 */
static bool
receive_message(StringInfo message)
{
	uint32		length;

	if (!receive(message, HEADER))
		return false;
	memcpy(&length, message->data + 1, sizeof(length));
	length = pg_ntoh32(length);
	if (length < sizeof(length) || length > LONGEST)
		return false;			/* the server reports this, and reads no more */
	return receive(message, 1 + length);
}

/*
 * Waits for the message, and has the server read it and nothing after it.
 * Until ticket_message_end() the server's socket is not the client's. Returns
 * true if all of the message is in pqcomm.c's buffer.
 */
static bool
ticket_message_await(void)
{
	int			room = 4 * LONGEST;
	int			ends[2];
	StringInfoData message;
	bool		is_whole;

	Assert(client == PGINVALID_SOCKET);
	ProcessClientReadInterrupt(false);
	initStringInfo(&message);
	is_whole = receive_message(&message) && message.len <= READ_AT_ONCE;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0)
		elog(FATAL, "could not create a pair of sockets: %m");
	(void) setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
	if (send(ends[1], message.data, message.len, MSG_NOSIGNAL) != message.len)
		elog(FATAL, "could not pass a message of %d bytes on", message.len);
	close(ends[1]);
	pfree(message.data);

	client = MyProcPort->sock;
	baton_port_set_socket(ends[0]);
	pq_startmsgread();
	is_whole = pq_peekbyte() != EOF && is_whole;
	pq_endmsgread();
	return is_whole;
}

/* The server is about to send: the client's socket returns. */
static void
ticket_message_end(void)
{
	if (client == PGINVALID_SOCKET)
		return;
	close(MyProcPort->sock);
	baton_port_set_socket(client);
	client = PGINVALID_SOCKET;
}

/* ----------------------------------------------------------------
 *		A client's request for GSSAPI encryption, answered by the backend that
 *		becomes the client's own.
 *
 * Problem: the keys of such a connection are a library's state in one process
 * (port->gss), and the startup packet comes encrypted. So the backend must
 * negotiate before the client's identity is known. But the startup packet that
 * brought the ticket is the dispatcher's, and the server reads no second
 * packet (ProcessStartupPacket() is static, and calls out in one place only:
 * see attach.c).
 *
 * What PostgreSQL guarantees, in 15 to 18 (postmaster.c, backend_startup.c
 * since 17): for GSSENCRequest ProcessStartupPacket() only answers 'G' and
 * calls secure_open_gssapi(). From then on pqcomm.c reads and writes
 * encrypted, by port->gss. After NegotiateProtocolVersion, where this code is
 * called, ProcessStartupPacket() uses only what it has put into Port,
 * am_walsender, am_db_walsender and FrontendProtocol. The check for a user
 * name, the database's default, limits of length, and whether the server
 * accepts connections come after it.
 *
 * Decision: the dispatcher's packet contains no user. This code begins
 * encryption, reads the client's own packet and stores it where the server
 * would have stored it, with the server's own checks and messages; then the
 * server goes on. A cancel request (libpq encrypts them, too, from 17 on) goes
 * to the dispatcher, which carries it out and then closes the connection.
 *
 * The time limits are those of any startup packet: authentication_timeout is
 * running (BackendInitialize()), and the dispatcher closes the client's
 * connection by its own login limits.
 * ----------------------------------------------------------------
 */

/* A client's first packet, without its length, followed by a zero byte. */
typedef struct FirstPacket
{
	char	   *bytes;
	int32		length;
} FirstPacket;

/*
 * Answers 'G' and lets the server begin encryption. Failures go to the log
 * only: the client cannot read them.
 */
static void
open_encryption(void)
{
#ifdef ENABLE_GSS
	const char *is_traced = GetConfigOption("trace_connection_negotiation", true, false);

	/* 17 and later */
	if (is_traced != NULL && strcmp(is_traced, "on") == 0)
		ereport(LOG,
				(errmsg("GSSENCRequest accepted")));
	while (send(MyProcPort->sock, "G", 1, MSG_NOSIGNAL) != 1)
	{
		if (errno == EINTR)
			continue;
		ereport(COMMERROR,
				(errcode_for_socket_access(),
				 errmsg("failed to send GSSAPI negotiation response: %m")));
		proc_exit(0);
	}
	if (secure_open_gssapi(MyProcPort) == -1)
		proc_exit(0);

	/*
	 * there is none: the dispatcher has sent its own packet, and reads
	 * nothing ahead
	 */
	if (baton_input_is_buffered())
		ereport(FATAL,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("received unencrypted data after GSSAPI encryption request"),
				 errdetail("This could be either a client-software bug or evidence of an attempted man-in-the-middle attack.")));
#else
	ereport(FATAL,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("this server is built without GSSAPI")));
#endif
}

/*
 * Reads the packet as ProcessStartupPacket() does after encryption has begun.
 */
static FirstPacket
read_packet(void)
{
	FirstPacket packet;
	int32		length;

	pq_startmsgread();
	if (pq_getbytes((char *) &length, sizeof(length)) == EOF)
		proc_exit(0);
	packet.length = (int32) pg_ntoh32(length) - (int32) sizeof(length);
	if (packet.length < (int32) sizeof(ProtocolVersion) ||
		packet.length > MAX_STARTUP_PACKET_LENGTH)
	{
		ereport(COMMERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("invalid length of startup packet")));
		proc_exit(0);
	}

	packet.bytes = MemoryContextAllocZero(TopMemoryContext, packet.length + 1);
	if (pq_getbytes(packet.bytes, packet.length) == EOF)
	{
		ereport(COMMERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("incomplete startup packet")));
		proc_exit(0);
	}
	pq_endmsgread();
	return packet;
}

static void
check_protocol(ProtocolVersion protocol)
{
	if (PG_PROTOCOL_MAJOR(protocol) < PG_PROTOCOL_MAJOR(PG_PROTOCOL_EARLIEST) ||
		PG_PROTOCOL_MAJOR(protocol) > PG_PROTOCOL_MAJOR(PG_PROTOCOL_LATEST))
		ereport(FATAL,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("unsupported frontend protocol %u.%u: server supports %u.0 to %u.%u",
						PG_PROTOCOL_MAJOR(protocol), PG_PROTOCOL_MINOR(protocol),
						PG_PROTOCOL_MAJOR(PG_PROTOCOL_EARLIEST),
						PG_PROTOCOL_MAJOR(PG_PROTOCOL_LATEST),
						PG_PROTOCOL_MINOR(PG_PROTOCOL_LATEST))));
}

static void
take_replication(const char *value)
{
	if (strcmp(value, "database") == 0)
	{
		am_walsender = true;
		am_db_walsender = true;
	}
	else if (!parse_bool(value, &am_walsender))
		ereport(FATAL,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for parameter \"%s\": \"%s\"",
						"replication", value),
				 errhint("Valid values are: \"false\", 0, \"true\", 1, \"database\".")));
}

/* Stores an option. The texts stay in the packet, which is never freed. */
static void
take_option(char *name, char *value, List **unrecognized)
{
	if (strcmp(name, "database") == 0)
		baton_port_set_database(value);
	else if (strcmp(name, "user") == 0)
		baton_port_set_user(value);
	else if (strcmp(name, "options") == 0)
		baton_port_set_options(value);
	else if (strcmp(name, "replication") == 0)
		take_replication(value);
	else if (strncmp(name, "_pq_.", strlen("_pq_.")) == 0)
		*unrecognized = lappend(*unrecognized, name);
	else
	{
		baton_port_add_parameter(name, value);
		if (strcmp(name, "application_name") == 0)
			baton_port_set_application_name(baton_clean_ascii(value));
	}
}

/* As SendNegotiateProtocolVersion(), which is static. */
static void
negotiate_version(ProtocolVersion protocol, List *unrecognized)
{
	StringInfoData message;
	ListCell   *cell;

	pq_beginmessage(&message, 'v');
	pq_sendint32(&message, Min(protocol, PG_PROTOCOL_LATEST));
	pq_sendint32(&message, list_length(unrecognized));
	foreach(cell, unrecognized)
		pq_sendstring(&message, (char *) lfirst(cell));
	pq_endmessage(&message);
}

/* Does what ProcessStartupPacket() does up to its call of this code. */
static void
take_packet(const FirstPacket *packet, ProtocolVersion protocol)
{
	int32		offset = sizeof(ProtocolVersion);
	List	   *unrecognized = NIL;

	baton_port_set_protocol(protocol);
	FrontendProtocol = baton_frontend_protocol(protocol);
	check_protocol(protocol);

	while (offset < packet->length)
	{
		char	   *name = packet->bytes + offset;
		int32		value_offset = offset + (int32) strlen(name) + 1;
		char	   *value = packet->bytes + value_offset;

		if (*name == '\0')
			break;				/* the packet's terminator */
		if (value_offset >= packet->length)
			break;				/* no value: refused below */
		take_option(name, value, &unrecognized);
		offset = value_offset + (int32) strlen(value) + 1;
	}
	if (offset != packet->length - 1)
		ereport(FATAL,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("invalid startup packet layout: expected terminator as last byte")));

	if (PG_PROTOCOL_MINOR(protocol) > PG_PROTOCOL_MINOR(PG_PROTOCOL_LATEST) ||
		unrecognized != NIL)
		negotiate_version(protocol, unrecognized);
}

/*
 * The client's socket is in place, and nothing has been answered. Afterwards
 * the server knows all that the client's own startup packet contains.
 */
static void
gss_startup(int dispatcher)
{
	MemoryContext outer_context = MemoryContextSwitchTo(TopMemoryContext);
	FirstPacket packet;
	ProtocolVersion protocol;

	open_encryption();
	packet = read_packet();
	memcpy(&protocol, packet.bytes, sizeof(protocol));
	protocol = pg_ntoh32(protocol);

	/* a dispatcher that has gone has nothing to show or to limit */
	(void) baton_channel_send(dispatcher, BATON_MSG_STARTUP, 0, packet.bytes, packet.length);
	if (protocol == CANCEL_REQUEST_CODE)
		proc_exit(0);
	take_packet(&packet, protocol);
	MemoryContextSwitchTo(outer_context);
}

/* ----------------------------------------------------------------
 *		A starting backend takes the client's own socket, before it
 *		authenticates.
 *
 * A client that the dispatcher cannot serve (replication, a method of
 * pg_hba.conf that only the server knows, ...) gets a backend of its own. The
 * dispatcher connects to the postmaster and sends the client's own startup
 * packet, byte for byte, preceded by one protocol option whose name carries a
 * ticket. The server reads the packet as if the client had sent it, does not
 * know the option, and answers it with NegotiateProtocolVersion (see
 * attach.c), its first message. This code catches that message and reads the
 * ticket from it. The backend asks the dispatcher for the client's socket over
 * the control socket, puts it in the place of its own, and goes on with the
 * client's address. The server does everything that it does for any client,
 * from the checks of the packet to the end of the session.
 *
 * There are three kinds of ticket. A native ticket makes an ordinary
 * connection for life. So does a ticket for GSSAPI encryption; the client's
 * packet comes after encryption has begun. A ticket for a login ends with
 * AuthenticationOk: instead of sending it, the backend reports it and exits,
 * and the dispatcher goes on as if it had asked for a password itself. Until
 * then the server does everything: methods, hooks, time limit, errors, log.
 * Such a backend reads only the client messages that it has asked for: the
 * rest belongs to the session.
 *
 * The backend tells the dispatcher when it waits for the client
 * (AWAITS_CLIENT): if other clients wait, the dispatcher takes the process
 * from a client that owes an answer, and never from a client for which the
 * server queries another service. So the backend awaits every answer here
 * before the server reads it: the whole answer, or its first byte if it is
 * encrypted.
 *
 * Security: the option requires a ticket that the dispatcher has just written
 * to CONTROL. A client's own packet comes after our option, and only the first
 * name is looked at. The dispatcher gives each ticket's client out once.
 *
 * A client that came by TLS has a relay in between (docs/design/tls.md). As in
 * attach.c, the backend sets ssl_in_use only while check_hba() and the code
 * before the first message look at it: secure_read() and secure_write() would
 * take it as true.
 *
 * Channel binding needs ssl_in_use again: scram_init() and
 * read_client_first_message() (auth-scram.c, 15 to 18) look at it once the
 * client has answered. So if channel binding is offered, the answer is read
 * before the server asks for it. Nothing is read or written then up to the
 * server's next message, and ssl_in_use is true until that message. pg_port.c
 * has the certificate to bind to.
 * ----------------------------------------------------------------
 */

/* The option's name ends with the ticket, in 16 digits. */
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
 * The connection to the dispatcher; -1: this backend has no ticket. It stays
 * open as long as the process: its end tells the dispatcher that the process
 * has ended.
 */
static int	dispatcher = -1;
static uint32 kind = BATON_TICKET_NATIVE;
static bool is_relayed = false;

/*
 * There is a certificate to bind to; and binding has been offered to the
 * client.
 */
static bool may_bind = false;
static bool binds = false;

/* AuthenticationOk has been sent. */
static bool is_in = false;

/* The request that was put but not flushed yet. */
static uint32 asked = REQUEST_NONE;

/* The ticket of that option; 0 if the dispatcher has given no such ticket. */
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
		client->frame.kind != BATON_MSG_CLIENT || client->descriptor_count != 1)
		ereport(FATAL,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("pg_baton's dispatcher has not given the client it has a ticket for")));
	pfree(hello.data);
}

/*
 * Puts the client's socket in the place of the backend's own. FeBeWaitSet
 * knows open files, not numbers, and the postmaster may not have closed its
 * copy of the old socket yet: so the set is rebuilt as pq_init() (pqcomm.c)
 * builds it.
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

/*
 * Sets the client's addresses, as BackendInitialize() found those of the old
 * socket.
 */
static void
read_addresses(const Port *port, const BatonClientMessage *client)
{
	BatonPortEnd remote = {client->family, client->port, client->peer_address.bytes, client->scope};
	BatonPortEnd local = {client->family, client->local_port, client->local_address.bytes, client->scope};
	char		host_name[NI_MAXHOST];
	char		port_name[NI_MAXSERV];

	baton_port_set_ends(&remote, &local);
	host_name[0] = port_name[0] = '\0';
	(void) pg_getnameinfo_all(&port->raddr.addr, port->raddr.salen, host_name, sizeof(host_name),
							  port_name, sizeof(port_name), NI_NUMERICHOST | NI_NUMERICSERV);
	baton_port_set_remote_text(MemoryContextStrdup(TopMemoryContext, host_name),
							   MemoryContextStrdup(TopMemoryContext, port_name));
}

/* Stores what is known of the client's TLS, which its relay terminates. */
static void
read_security(Port *port, const BatonClientMessage *client)
{
	BatonTls   *tls = &baton_relayed_tls;

	is_relayed = client->is_relayed;
	if (client->has_certificate)
		baton_port_set_certificate(true,
								   client->common_name[0] == '\0' ? NULL :
								   MemoryContextStrdup(TopMemoryContext, client->common_name),
								   MemoryContextStrdup(TopMemoryContext, client->distinguished_name));
	if (is_relayed)
		may_bind = baton_certificate_put(port, client->server_certificate.data,
										 client->server_certificate.length);

	tls->in_use = is_relayed;
	tls->bits = client->bits;
	strlcpy((char *) tls->version, client->version, sizeof(tls->version));
	strlcpy((char *) tls->cipher, client->cipher, sizeof(tls->cipher));
	strlcpy((char *) tls->client_dn, client->client_dn, sizeof(tls->client_dn));
	strlcpy((char *) tls->client_serial, client->client_serial, sizeof(tls->client_serial));
	strlcpy((char *) tls->issuer_dn, client->issuer_dn, sizeof(tls->issuer_dn));
}

/*
 * Sets what a new TCP connection of the server's own gets from the parameters.
 */
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
 * Tells the client what concerns its own packet: that its version is newer
 * than the server's, or which of its options are unknown. For a login the
 * dispatcher tells the client.
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

/* What pg_stat_gssapi and SYSTEM_USER would show. */
static BatonAuthenticated
how_authenticated(void)
{
	BatonAuthenticated how = {0};

#ifdef ENABLE_GSS
	how.by_gss = be_gssapi_get_auth(MyProcPort);
	how.principal = be_gssapi_get_princ(MyProcPort);
#endif
	how.identity = baton_client_identity(&how.method);
	how.had_to_prove = how.identity != NULL;
	return how;
}

/* The server lets the client in.  The dispatcher does the rest. */
static void
finish_login(void)
{
	StringInfoData payload;
	BatonAuthenticated how;

	(void) server_methods->flush();

	/* the server read more than one GSSAPI message without this code */
	if (baton_input_is_buffered())
		ereport(FATAL,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("received data before authentication was over")));

	/*
	 * The parameter was switched on a moment ago, and the dispatcher does not
	 * know yet: this is not the role that it would let in.
	 */
	if (baton_user_namespaces())
		ereport(FATAL,
				(errcode(ERRCODE_CANNOT_CONNECT_NOW),
				 errmsg("parameter \"%s\" has just been switched on", "db_user_namespace"),
				 errhint("Connect again.")));
	how = how_authenticated();
	initStringInfo(&payload);
	baton_write_authenticated(&payload, &how);
	(void) baton_channel_send(dispatcher, BATON_MSG_AUTHENTICATED, 0, payload.data, payload.len);
	proc_exit(0);
}

/*
 * BackendKeyData is next: the session's role is known by now, and a
 * transaction can be begun. (BeginReportingGUCOptions() may be within a scan
 * of the parameters, which a transaction would end.) Asks the dispatcher
 * whether its user and its address may have another session. A dispatcher that
 * has gone does not answer.
 */
static void
begin_native(void)
{
	const char *superuser = GetConfigOption("is_superuser", true, false);
	const BatonNativeIn native = {
		.role_oid = GetAuthenticatedUserId(),
		.superuser = superuser != NULL && strcmp(superuser, "on") == 0
	};
	StringInfoData who;
	BatonIncoming answer;
	BatonWireReader in;
	BatonNativeAnswer said;

	let_go();
	if (baton_relayed_tls.in_use)
		baton_entry_set_tls(&baton_relayed_tls);
	initStringInfo(&who);
	baton_write_native_in(&who, &native);
	if (!baton_channel_send(dispatcher, BATON_MSG_NATIVE_IN, 0, who.data, who.len) ||
		baton_channel_await(dispatcher, &answer) != BATON_RECEIVED_FRAME)
		return;
	baton_incoming_close(&answer);
	pfree(who.data);
	in = baton_incoming_reader(&answer);
	baton_read_native_answer(&in, &said);
	if (answer.frame.kind == BATON_MSG_NATIVE_ANSWER && !in.bad && said.why[0] != '\0')
		ereport(FATAL,
				(errcode(ERRCODE_TOO_MANY_CONNECTIONS),
				 errmsg("%s", said.why),
				 errdetail("%s", said.detail)));
}

/* Tells the dispatcher whether the backend waits for the client. */
static void
tell_turn(bool is_client_s)
{
	char		turn = is_client_s ? 1 : 0;

	/* a dispatcher that has gone takes nothing away */
	(void) baton_channel_send(dispatcher, BATON_MSG_AWAITS_CLIENT, 0, &turn, 1);
}

/* Waits for the answer; returns true if all of it is in pqcomm.c's buffer. */
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
		is_whole = ticket_message_await();
	tell_turn(false);
	return is_whole;
}

/* Handles what the server sends up to BackendKeyData. */
static int
ticket_message(char type, const char *body, size_t length)
{
	const size_t offered = strlen(CHANNEL_BINDING) + 1;
	bool		is_request = type == 'R' && length >= sizeof(asked);

	ticket_message_end();
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

/*
 * Does the client answer that request, and the server then read one message?
 */
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
	ticket_message_end();
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
	BatonClientMessage known;

	/* names end with a zero byte each (SendNegotiateProtocolVersion) */
	if (length <= header || memchr(name, '\0', length - header) == NULL)
		return false;
	ticket = read_ticket(name);
	if (ticket == 0)
		return false;

	ask_for_client(ticket, &client);
	in = baton_incoming_reader(&client);
	baton_read_client(&in, &known);
	if (in.bad)
		elog(FATAL, "pg_baton's dispatcher is of another version");
	kind = known.kind;
	read_addresses(MyProcPort, &known);
	read_security(MyProcPort, &known);
	put_socket(client.descriptors[0]);
	set_keepalives(MyProcPort);

	server_methods = PqCommMethods;
	methods = *server_methods;
	methods.putmessage = ticket_message;
	methods.flush = ticket_flush;
	if (kind == BATON_TICKET_GSS)
		gss_startup(dispatcher);
	else
		tell_client(body, length, strlen(name) + 1);
	PqCommMethods = &methods;
	/* not earlier: an error would go through a TLS session without a socket */
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

	/* these options come from a client, not from the dispatcher */
	if (port->cmdline_options != NULL && strstr(port->cmdline_options, BATON_ATTACH_OPTION) != NULL)
		ereport(FATAL,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("parameter \"%s\" cannot be set by a client", "pg_baton.attach")));
	if (is_relayed && baton_keepalive_attach() == NULL)
		baton_keepalive_relayed(true);
}
